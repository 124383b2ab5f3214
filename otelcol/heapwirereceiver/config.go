// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/heapwire/heapwire/convert/torchmem"
)

// Config is what users write.
type Config struct {
	// Spools are glob patterns of the folders that HEAPWIRE_SPOOL names; they need not be there yet.
	Spools []string `mapstructure:"spools"`
	// Snapshots are folders into which others write snapshots of device memory.
	Snapshots []SnapshotsConfig `mapstructure:"snapshots"`

	// PollInterval is how often folders are looked for, and looked at without a file event. Default 5s.
	PollInterval time.Duration `mapstructure:"poll_interval"`
	// Keep leaves delivered dumps in the spool, in its folder "delivered". Default false.
	Keep bool `mapstructure:"keep"`
	// MaxAge is how long a dump may wait; then it is dropped. Default 24h.
	MaxAge time.Duration `mapstructure:"max_age"`
	// MaxFileSize is the size in bytes of the largest file that is read. Default 4294967296.
	MaxFileSize int64 `mapstructure:"max_file_size"`
	// MaxSpoolSize bounds the bytes that wait in a spool; above it dumps are dropped, plain ones first. Default 1073741824.
	MaxSpoolSize int64 `mapstructure:"max_spool_size"`
	// MaxSpoolFiles bounds the number of files that wait in a spool. Default 20000.
	MaxSpoolFiles int `mapstructure:"max_spool_files"`
	// MaxRequestSize is the size in bytes above which a profile is handed on in parts. Default 67108864.
	MaxRequestSize int `mapstructure:"max_request_size"`

	// StorageID is an extension that remembers which snapshots were delivered, for folders that cannot be written to.
	// Empty by default: a file in the folder remembers it.
	StorageID *component.ID `mapstructure:"storage"`

	// Views are the views of device memory that are handed on. Default all.
	Views []string `mapstructure:"views"`
	// Resource adds resource attributes: the attribute's name, and the field of process.json that has its value; an empty
	// field removes an attribute. None by default.
	Resource map[string]string `mapstructure:"resource"`

	_ struct{}
}

// SnapshotsConfig is one group of folders.
type SnapshotsConfig struct {
	// Path is a glob pattern of folders; folders in them are looked at too. They need not be there yet.
	Path string `mapstructure:"path"`
	// ServiceName is the service.name of what is read there. Default unknown_service.
	ServiceName string `mapstructure:"service_name"`
	// ResourceAttributes are those of what is read there, beside host, rank and process. None by default.
	ResourceAttributes map[string]string `mapstructure:"resource_attributes"`
	// NamePattern is a regular expression with groups named rank, pid and step, for paths that are neither verl's nor
	// torch_npu's. Empty by default.
	NamePattern string `mapstructure:"name_pattern"`

	_ struct{}
}

// names compiles NamePattern; nil without one.
func (s SnapshotsConfig) names() (*regexp.Regexp, error) {
	if s.NamePattern == "" {
		return nil, nil
	}
	pattern, err := regexp.Compile(s.NamePattern)
	if err != nil {
		return nil, err
	}
	for _, group := range pattern.SubexpNames()[1:] {
		if slices.Contains(torchmem.NameGroups, group) {
			return pattern, nil
		}
	}
	return nil, fmt.Errorf("%q: want a group named %s, as in (?P<rank>[0-9]+)", s.NamePattern, strings.Join(torchmem.NameGroups, " or "))
}

var _ component.Config = (*Config)(nil)

// Validate says what the receiver could do nothing with.
func (cfg *Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	pattern := func(key, glob string) {
		switch _, err := filepath.Match(glob, ""); {
		case glob == "":
			fail("%s: is empty", key)
		case err != nil:
			fail("%s: %q: %w", key, glob, err)
		}
	}
	if len(cfg.Spools)+len(cfg.Snapshots) == 0 {
		errs = append(errs, errors.New("spools: name at least one folder, or one in snapshots"))
	}
	for i, glob := range cfg.Spools {
		pattern(fmt.Sprintf("spools::%d", i), glob)
	}
	for i, s := range cfg.Snapshots {
		pattern(fmt.Sprintf("snapshots::%d::path", i), s.Path)
		if _, err := s.names(); err != nil {
			fail("snapshots::%d::name_pattern: %w", i, err)
		}
	}
	if cfg.PollInterval <= 0 {
		fail("poll_interval: %v: must be above 0", cfg.PollInterval)
	}
	if cfg.MaxAge <= 0 {
		fail("max_age: %v: must be above 0", cfg.MaxAge)
	}
	for key, v := range map[string]int64{
		"max_file_size": cfg.MaxFileSize, "max_spool_size": cfg.MaxSpoolSize, "max_spool_files": int64(cfg.MaxSpoolFiles), "max_request_size": int64(cfg.MaxRequestSize),
	} {
		if v <= 0 {
			fail("%s: %d: must be above 0", key, v)
		}
	}
	for i, view := range cfg.Views {
		if !slices.Contains(torchmem.Views, view) {
			fail("views::%d: %q: want one of %s", i, view, strings.Join(torchmem.Views, ", "))
		}
	}
	for attribute, field := range cfg.Resource {
		if _, ok := fields[field]; !ok && field != "" && !strings.HasPrefix(field, variablePrefix) {
			fail("resource::%s: %q: no such field of process.json", attribute, field)
		}
	}
	return errors.Join(errs...)
}

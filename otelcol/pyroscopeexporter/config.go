// SPDX-License-Identifier: Apache-2.0

package pyroscopeexporter

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configretry"
	"go.opentelemetry.io/collector/exporter/exporterhelper"

	"github.com/heapwire/heapwire/exporter/pyroscope"
)

// What becomes of alloc_* profiles, which count from the start of their process: the server would add them up.
const (
	allocDelta = "delta"
	allocDrop  = "drop"
	allocKeep  = "keep"
)

// Config is what users write.
type Config struct {
	// ClientConfig has the server's base URL as its endpoint. No default.
	ClientConfig confighttp.ClientConfig `mapstructure:",squash"`
	// QueueConfig bounds what waits, 256 MiB by default.
	QueueConfig configoptional.Optional[exporterhelper.QueueBatchConfig] `mapstructure:"sending_queue"`
	// RetryConfig says how long a push that may succeed later is tried.
	RetryConfig configretry.BackOffConfig `mapstructure:"retry_on_failure"`

	// TenantID is sent as X-Scope-OrgID. Empty by default.
	TenantID string `mapstructure:"tenant_id"`
	// TenantAttribute is a resource attribute that has the tenant; where it is missing, TenantID counts. Empty by default.
	TenantAttribute string `mapstructure:"tenant_attribute"`

	// ResourceLabels are resource attributes with the label that each becomes, in addition to the defaults; an empty label
	// removes one.
	ResourceLabels map[string]string `mapstructure:"resource_labels"`
	// ProfileLabels are attributes of profiles and samples with the label that each becomes, in addition to memory_kind,
	// device and view; an empty label removes one.
	ProfileLabels map[string]string `mapstructure:"profile_labels"`
	// ProfileName are rules, tried in order, for the first half of a profile type's id; the built-in ones come after them.
	ProfileName []NameRule `mapstructure:"profile_name"`

	// Alloc says what becomes of alloc_* profiles: delta, drop or keep. Default delta.
	Alloc string `mapstructure:"alloc"`
	// Stale says what becomes of profiles older than an hour: drop or restamp. Default drop.
	Stale string `mapstructure:"stale"`
	// MaxProfileBytes is the size, before compression, above which a profile is split. Default 2031616.
	MaxProfileBytes int `mapstructure:"max_profile_bytes"`
	// MaxProfileSamples is the number of samples above which a profile is split. Default 16000.
	MaxProfileSamples int `mapstructure:"max_profile_samples"`

	_ struct{}
}

// NameRule names profiles by their sample type.
type NameRule struct {
	// SampleType is a regular expression for the whole of "type:unit", such as "inuse_.*:.*".
	SampleType string `mapstructure:"sample_type"`
	// Name is the first half of the profile type's id, such as "memory".
	Name string `mapstructure:"name"`

	_ struct{}
}

var _ component.Config = (*Config)(nil)

// Validate says what a server, or this exporter, could do nothing with.
func (cfg *Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	u, err := url.Parse(cfg.ClientConfig.Endpoint)
	switch {
	case cfg.ClientConfig.Endpoint == "":
		errs = append(errs, errors.New("endpoint: must be set, to the base URL of a Pyroscope server"))
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		errs = append(errs, errors.New("endpoint: want an http or https URL with a host")) // without the value: it may hold a password
	}
	for attribute, label := range cfg.ResourceLabels {
		if err := checkLabel(label); err != nil {
			fail("resource_labels::%s: %w", attribute, err)
		}
	}
	for attribute, label := range cfg.ProfileLabels {
		if err := checkLabel(label); err != nil {
			fail("profile_labels::%s: %w", attribute, err)
		}
	}
	for i, rule := range cfg.ProfileName {
		if _, err := regexp.Compile(rule.SampleType); err != nil || rule.SampleType == "" {
			fail("profile_name::%d::sample_type: want a regular expression: %w", i, orEmpty(err))
		}
		if !nameForm.MatchString(rule.Name) {
			fail("profile_name::%d::name: %q: want letters, digits and underscores", i, rule.Name)
		}
	}
	switch cfg.Alloc {
	case allocDelta, allocDrop, allocKeep:
	default:
		fail("alloc: %q: want %s, %s or %s", cfg.Alloc, allocDelta, allocDrop, allocKeep)
	}
	switch pyroscope.Stale(cfg.Stale) {
	case pyroscope.DropStale, pyroscope.RestampStale:
	default:
		fail("stale: %q: want %s or %s", cfg.Stale, pyroscope.DropStale, pyroscope.RestampStale)
	}
	if cfg.MaxProfileBytes <= 0 {
		fail("max_profile_bytes: %d: must be above 0", cfg.MaxProfileBytes)
	}
	if cfg.MaxProfileSamples <= 0 {
		fail("max_profile_samples: %d: must be above 0", cfg.MaxProfileSamples)
	}
	return errors.Join(errs...)
}

var nameForm = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]*$`)

// reservedLabels are those that the exporter itself gives a series.
var reservedLabels = regexp.MustCompile(`^(__.*|service_name)$`)

func checkLabel(label string) error {
	switch {
	case label == "":
		return nil
	case reservedLabels.MatchString(label):
		return fmt.Errorf("%q: is given by the exporter", label)
	case !nameForm.MatchString(label):
		return fmt.Errorf("%q: want letters, digits and underscores", label)
	}
	return nil
}

func orEmpty(err error) error {
	if err == nil {
		return errors.New("it is empty")
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/confmaptest"
)

func load(t *testing.T, id string) *Config {
	t.Helper()
	all, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	sub, err := all.Sub(id)
	if err != nil {
		t.Fatal(err)
	}
	cfg := createDefaultConfig().(*Config)
	if err := sub.Unmarshal(cfg); err != nil {
		t.Fatal(err)
	}
	if err := confmap.Validate(cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestConfig(t *testing.T) {
	cfg := load(t, "heapwire")
	if cfg.PollInterval != 5*time.Second || cfg.MaxAge != 24*time.Hour || cfg.MaxFileSize != 4<<30 || cfg.MaxSpoolSize != 1<<30 || cfg.MaxSpoolFiles != 20000 ||
		cfg.MaxRequestSize != 64<<20 || cfg.Keep || cfg.StorageID != nil || cfg.Views != nil {
		t.Errorf("defaults %+v", cfg)
	}
	cfg = load(t, "heapwire/all")
	if len(cfg.Spools) != 2 || len(cfg.Snapshots) != 1 || cfg.Snapshots[0].ServiceName != "trainer" || cfg.Snapshots[0].ResourceAttributes["team"] != "rl" || cfg.Snapshots[0].NamePattern != "worker(?P<rank>[0-9]+)/" ||
		cfg.PollInterval != 2*time.Second || !cfg.Keep || cfg.MaxAge != time.Hour || cfg.MaxFileSize != 1e6 || cfg.MaxSpoolSize != 2e6 || cfg.MaxSpoolFiles != 30 ||
		cfg.MaxRequestSize != 4e6 || cfg.StorageID.String() != "file_storage/positions" || len(cfg.Views) != 2 || cfg.Resource["slurm.job.id"] != "variables.SLURM_JOB_ID" {
		t.Errorf("%+v", cfg)
	}
}

func TestConfigThatCannotWorkIsRefusedWithItsKey(t *testing.T) {
	f := func(want string, set map[string]any) {
		t.Helper()
		cfg := createDefaultConfig().(*Config)
		err := confmap.NewFromStringMap(set).Unmarshal(cfg)
		if err == nil {
			err = confmap.Validate(cfg)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", set, err, want)
		}
	}
	one := func(key string, value any) map[string]any { return map[string]any{"spools": []any{"/a"}, key: value} }
	f("spools: name at least one", nil)
	f("spools::1: \"[\"", map[string]any{"spools": []any{"/a", "["}})
	f("spools::0: is empty", map[string]any{"spools": []any{""}})
	f("snapshots::0::path: is empty", map[string]any{"snapshots": []any{map[string]any{"service_name": "a"}}})
	f("snapshots::0::name_pattern: error parsing", map[string]any{"snapshots": []any{map[string]any{"path": "/a", "name_pattern": "("}}})
	f("snapshots::0::name_pattern: \"a(b)\": want a group named rank", map[string]any{"snapshots": []any{map[string]any{"path": "/a", "name_pattern": "a(b)"}}})
	f("poll_interval: 0s", one("poll_interval", "0s"))
	f("max_age: -1s", one("max_age", "-1s"))
	f("max_file_size: 0", one("max_file_size", 0))
	f("max_spool_size: -1", one("max_spool_size", -1))
	f("max_spool_files: 0", one("max_spool_files", 0))
	f("max_request_size: 0", one("max_request_size", 0))
	f("views::0: \"all\": want one of live, peak", one("views", []any{"all"}))
	f("resource::a: \"argv\": no such field", one("resource", map[string]any{"a": "argv"}))
	f("spool", map[string]any{"spool": "/a"})
}

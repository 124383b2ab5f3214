// SPDX-License-Identifier: Apache-2.0

package pyroscopeexporter

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
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

func TestConfigWithDefaults(t *testing.T) {
	cfg := load(t, "pyroscope")
	q := cfg.QueueConfig.Get()
	if q == nil || q.Sizer != exporterhelper.RequestSizerTypeBytes || q.QueueSize != 256<<20 {
		t.Errorf("queue %+v", q)
	}
	if cfg.ResourceLabels["k8s.pod.name"] != "pod" || cfg.ResourceLabels["heapwire.rank"] != "rank" || len(cfg.ProfileLabels) != 3 {
		t.Errorf("labels %v, %v", cfg.ResourceLabels, cfg.ProfileLabels)
	}
	if cfg.Alloc != "delta" || cfg.Stale != "drop" || cfg.MaxProfileBytes != 2031616 || cfg.MaxProfileSamples != 16000 || cfg.ClientConfig.Timeout != 10*time.Second || !cfg.RetryConfig.Enabled {
		t.Errorf("%+v", cfg)
	}
}

func TestConfigWithEverything(t *testing.T) {
	cfg := load(t, "pyroscope/all")
	if cfg.ResourceLabels["team"] != "team" || cfg.ResourceLabels["k8s.pod.name"] != "" || cfg.ResourceLabels["k8s.job.name"] != "job" {
		t.Errorf("resource labels are no addition to the defaults: %v", cfg.ResourceLabels)
	}
	if cfg.ProfileLabels["reason"] != "reason" || cfg.ProfileLabels["view"] != "" || cfg.ProfileLabels["device"] != "device" {
		t.Errorf("profile labels %v", cfg.ProfileLabels)
	}
	if cfg.TenantID != "everyone" || cfg.TenantAttribute != "k8s.namespace.name" || cfg.ProfileName[0].Name != "off_cpu" || cfg.Alloc != "drop" || cfg.Stale != "restamp" || cfg.MaxProfileSamples != 1000 {
		t.Errorf("%+v", cfg)
	}
	if load(t, "pyroscope/no_queue").QueueConfig.HasValue() {
		t.Error("enabled: false leaves the queue on")
	}
}

func TestConfigThatCannotWorkIsRefusedWithItsKey(t *testing.T) {
	f := func(want string, set map[string]any) {
		t.Helper()
		cfg := createDefaultConfig().(*Config)
		all := map[string]any{"endpoint": "http://127.0.0.1:1"}
		for k, v := range set {
			all[k] = v
		}
		err := confmap.NewFromStringMap(all).Unmarshal(cfg)
		if err == nil {
			err = confmap.Validate(cfg)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", set, err, want)
		}
	}
	f("endpoint: must be set", map[string]any{"endpoint": ""})
	f("endpoint: want an http or https URL", map[string]any{"endpoint": "pyroscope:4040"})
	f("alloc: \"sum\": want delta, drop or keep", map[string]any{"alloc": "sum"})
	f("stale: \"keep\"", map[string]any{"stale": "keep"})
	f("max_profile_bytes: -1", map[string]any{"max_profile_bytes": -1})
	f("max_profile_samples: 0", map[string]any{"max_profile_samples": 0})
	f("resource_labels::a: \"b.c\"", map[string]any{"resource_labels": map[string]any{"a": "b.c"}})
	f("resource_labels::a: \"service_name\": is given by the exporter", map[string]any{"resource_labels": map[string]any{"a": "service_name"}})
	f("profile_labels::a: \"__x\"", map[string]any{"profile_labels": map[string]any{"a": "__x"}})
	f("profile_name::0::sample_type", map[string]any{"profile_name": []any{map[string]any{"sample_type": "(", "name": "a"}}})
	f("profile_name::0::name", map[string]any{"profile_name": []any{map[string]any{"sample_type": "a", "name": "a b"}}})
	f("unknown_key", map[string]any{"unknown_key": 1})
}

func TestFactoryIsOfProfiles(t *testing.T) {
	if f := NewFactory(); f.Type() != component.MustNewType("pyroscope") {
		t.Errorf("type %s", f.Type())
	}
}

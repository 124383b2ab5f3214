// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"

	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/otelcol/heapwirereceiver/internal/metadata"
)

// NewFactory makes the factory of the receiver "heapwire".
func NewFactory() receiver.Factory {
	return xreceiver.NewFactory(metadata.Type, createDefaultConfig,
		xreceiver.WithProfiles(createProfiles, metadata.ProfilesStability),
		xreceiver.WithLogs(createLogs, metadata.LogsStability),
		xreceiver.WithMetrics(createMetrics, metadata.MetricsStability),
	)
}

func createDefaultConfig() component.Config {
	return &Config{
		PollInterval:   5 * time.Second,
		MaxAge:         24 * time.Hour,
		MaxFileSize:    4 << 30,
		MaxSpoolSize:   1 << 30,
		MaxSpoolFiles:  20000,
		MaxRequestSize: otlp.MaxRequestBytes,
	}
}

// instances are the receivers that were created and not shut down: the Collector creates one for each signal, and they are
// the same, since a spool has one reader.
var instances = struct {
	sync.Mutex
	of map[*Config]*heapwireReceiver
}{of: map[*Config]*heapwireReceiver{}}

func instance(cfg component.Config, set receiver.Settings, use func(*heapwireReceiver)) (*heapwireReceiver, error) {
	instances.Lock()
	defer instances.Unlock()
	own := cfg.(*Config)
	r := instances.of[own]
	if r == nil {
		var err error
		if r, err = newReceiver(own, set); err != nil {
			return nil, err
		}
		instances.of[own] = r
	}
	use(r)
	return r, nil
}

func forget(r *heapwireReceiver) {
	instances.Lock()
	defer instances.Unlock()
	if instances.of[r.cfg] == r {
		delete(instances.of, r.cfg)
	}
}

func createProfiles(_ context.Context, set receiver.Settings, cfg component.Config, next xconsumer.Profiles) (xreceiver.Profiles, error) {
	return instance(cfg, set, func(r *heapwireReceiver) { r.profiles = next })
}

func createLogs(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
	return instance(cfg, set, func(r *heapwireReceiver) { r.logs = next })
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return instance(cfg, set, func(r *heapwireReceiver) { r.metrics = next })
}

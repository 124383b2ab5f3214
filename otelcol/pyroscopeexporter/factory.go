// SPDX-License-Identifier: Apache-2.0

package pyroscopeexporter

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configretry"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/exporter/exporterhelper/xexporterhelper"
	"go.opentelemetry.io/collector/exporter/xexporter"

	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/otelcol/pyroscopeexporter/internal/metadata"
)

// NewFactory makes the factory of the exporter "pyroscope".
func NewFactory() exporter.Factory {
	return xexporter.NewFactory(metadata.Type, createDefaultConfig, xexporter.WithProfiles(createProfiles, metadata.ProfilesStability))
}

// defaultQueueBytes bounds the memory for what waits: counted in requests, as is the Collector's default, a thousand
// profiles may be gigabytes.
const defaultQueueBytes = 256 << 20

func createDefaultConfig() component.Config {
	client := confighttp.NewDefaultClientConfig()
	client.Timeout = pyroscope.DefaultTimeout
	queue := exporterhelper.NewDefaultQueueConfig()
	queue.Sizer, queue.QueueSize = exporterhelper.RequestSizerTypeBytes, defaultQueueBytes
	return &Config{
		ClientConfig:   client,
		QueueConfig:    configoptional.Some(queue),
		RetryConfig:    configretry.NewDefaultBackOffConfig(),
		ResourceLabels: pyroscope.ResourceLabels(),
		ProfileLabels:  map[string]string{"memory_kind": "memory_kind", "device": "device", "view": "view"},
		Alloc:          allocDelta,
		Stale:          string(pyroscope.DropStale),

		MaxProfileBytes:   pyroscope.DefaultMaxBytes,
		MaxProfileSamples: pyroscope.DefaultMaxSamples,
	}
}

func createProfiles(ctx context.Context, set exporter.Settings, cfg component.Config) (xexporter.Profiles, error) {
	own := cfg.(*Config)
	e, err := newExporter(own, set)
	if err != nil {
		return nil, err
	}
	return xexporterhelper.NewProfiles(ctx, set, cfg, e.push,
		exporterhelper.WithStart(e.start),
		exporterhelper.WithShutdown(e.shutdown),
		// The HTTP client has the timeout of each request.
		exporterhelper.WithTimeout(exporterhelper.TimeoutConfig{}),
		exporterhelper.WithRetry(own.RetryConfig),
		exporterhelper.WithQueue(own.QueueConfig),
		exporterhelper.WithCapabilities(consumer.Capabilities{MutatesData: false}),
	)
}

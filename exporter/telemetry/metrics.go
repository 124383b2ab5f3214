// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"google.golang.org/grpc/credentials"

	"github.com/heapwire/heapwire/exporter/otlp"
)

// serviceName is ours, not that of the processes profiled.
const serviceName = "heapwire"

// Metrics sends metrics until Shutdown. The zero value has none to send.
type Metrics struct{ provider *sdk.MeterProvider }

// OpenMetrics sends to the endpoint that the standard variables name for metrics, every OTEL_METRIC_EXPORT_INTERVAL (60 s).
// Without an endpoint there is no metric and no error.
func OpenMetrics(ctx context.Context, getenv func(string) string, version string, log *slog.Logger) (*Metrics, error) {
	cfg, enabled, err := otlp.ConfigFor(otlp.Metrics, getenv)
	if err != nil || !enabled {
		return &Metrics{}, err
	}
	exporter, err := exporterOf(ctx, cfg)
	if err != nil {
		return &Metrics{}, fmt.Errorf("opening our own metrics: %w", err)
	}
	// Without a handler the SDK writes to standard error, which is the job's.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("sending our own metrics", "error", err) }))
	attrs := resource.NewWithAttributes(semconv.SchemaURL,
		semconv.ServiceName(serviceName), semconv.ServiceVersion(version), semconv.ProcessPID(os.Getpid()), semconv.HostName(hostName()))
	return &Metrics{sdk.NewMeterProvider(sdk.WithResource(attrs), sdk.WithReader(sdk.NewPeriodicReader(exporter)))}, nil
}

func hostName() string {
	host, _ := os.Hostname()
	return host
}

func exporterOf(ctx context.Context, cfg otlp.Config) (sdk.Exporter, error) {
	tls, err := cfg.TLS()
	if err != nil {
		return nil, err
	}
	if cfg.Protocol != otlp.GRPC {
		options := []otlpmetrichttp.Option{
			otlpmetrichttp.WithEndpointURL(cfg.Endpoint), otlpmetrichttp.WithHeaders(cfg.Headers), otlpmetrichttp.WithTimeout(cfg.Timeout),
		}
		if cfg.Compression == "gzip" {
			options = append(options, otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression))
		}
		if strings.HasPrefix(cfg.Endpoint, "http://") {
			options = append(options, otlpmetrichttp.WithInsecure())
		} else {
			options = append(options, otlpmetrichttp.WithTLSClientConfig(tls))
		}
		return otlpmetrichttp.New(ctx, options...)
	}
	target, plain, err := cfg.GRPCTarget()
	if err != nil {
		return nil, err
	}
	options := []otlpmetricgrpc.Option{
		otlpmetricgrpc.WithEndpoint(target), otlpmetricgrpc.WithHeaders(cfg.Headers), otlpmetricgrpc.WithTimeout(cfg.Timeout),
	}
	if cfg.Compression == "gzip" {
		options = append(options, otlpmetricgrpc.WithCompressor("gzip"))
	}
	if plain {
		options = append(options, otlpmetricgrpc.WithInsecure())
	} else {
		options = append(options, otlpmetricgrpc.WithTLSCredentials(credentials.NewTLS(tls)))
	}
	return otlpmetricgrpc.New(ctx, options...)
}

// Provider is what measures; nil without an endpoint.
func (m *Metrics) Provider() metric.MeterProvider {
	if m.provider == nil {
		return nil
	}
	return m.provider
}

// Shutdown sends the last figures, as far as ctx lets it.
func (m *Metrics) Shutdown(ctx context.Context) error {
	if m.provider == nil {
		return nil
	}
	if err := m.provider.Shutdown(ctx); err != nil && !errors.Is(err, sdk.ErrReaderShutdown) {
		return fmt.Errorf("sending our own metrics: %w", err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package otlptest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	nometric "go.opentelemetry.io/otel/metric/noop"
	notrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// maxRequestMiB is the limit of both protocols. The receiver's own defaults, 4 MiB for gRPC and 20 MiB for HTTP, are
// below what a large profile needs.
const maxRequestMiB = 64

// Options of a receiver. The zero value listens on free loopback ports.
type Options struct {
	// HTTP and GRPC are listening addresses, by default "127.0.0.1:0".
	HTTP, GRPC string

	// Consume, if set, is called for each request of profiles before it is kept; its error becomes the receiver's answer.
	Consume func(context.Context, pprofile.Profiles) error
}

// Receiver is a running otlpreceiver and what it received.
type Receiver struct {
	// HTTP and GRPC are base URLs for OTEL_EXPORTER_OTLP_ENDPOINT.
	HTTP, GRPC string

	component component.Component
	consume   func(context.Context, pprofile.Profiles) error

	mu       sync.Mutex
	received []pprofile.Profiles
	logs     []plog.Logs
	metrics  []pmetric.Metrics
	arrived  chan struct{} // closed and replaced at each arrival of profiles
}

// Start runs a receiver until Shutdown.
func Start(ctx context.Context, opts Options) (*Receiver, error) {
	r := &Receiver{consume: opts.Consume, arrived: make(chan struct{})}
	next, err := xconsumer.NewProfiles(r.keep)
	if err != nil {
		return nil, fmt.Errorf("otlptest: %w", err)
	}
	factory := otlpreceiver.NewFactory()
	profiles, ok := factory.(xreceiver.Factory)
	if !ok {
		return nil, errors.New("otlptest: this otlpreceiver takes no profiles")
	}
	cfg := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	grpc := *cfg.Protocols.GRPC.GetOrInsertDefault()
	grpc.NetAddr.Endpoint = orLoopback(opts.GRPC)
	grpc.MaxRecvMsgSizeMiB = maxRequestMiB
	cfg.Protocols.GRPC = configoptional.Some[configgrpc.ServerConfig](grpc)
	http := *cfg.Protocols.HTTP.GetOrInsertDefault()
	http.ServerConfig.NetAddr.Endpoint = orLoopback(opts.HTTP)
	http.ServerConfig.MaxRequestBodySize = maxRequestMiB << 20
	cfg.Protocols.HTTP = configoptional.Some(http)

	addresses := &addressLog{}
	settings := receiver.Settings{
		ID: component.NewID(factory.Type()),
		TelemetrySettings: component.TelemetrySettings{
			Logger:         zap.New(addresses),
			TracerProvider: notrace.NewTracerProvider(),
			MeterProvider:  nometric.NewMeterProvider(),
			Resource:       pcommon.NewResource(),
		},
		BuildInfo: component.NewDefaultBuildInfo(),
	}
	// The factory gives the same component for the same configuration.
	if r.component, err = profiles.CreateProfiles(ctx, settings, cfg, next); err == nil {
		err = r.others(ctx, factory, settings, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("otlptest: creating the receiver: %w", err)
	}
	if err := r.component.Start(ctx, host{}); err != nil {
		return nil, fmt.Errorf("otlptest: starting the receiver: %w", err)
	}
	r.HTTP, r.GRPC = addresses.get()
	if r.HTTP == "" || r.GRPC == "" {
		return nil, errors.Join(errors.New("otlptest: the receiver did not say where it listens"), r.Shutdown(ctx))
	}
	return r, nil
}

// others makes the receiver take logs and metrics too.
func (r *Receiver) others(ctx context.Context, factory receiver.Factory, settings receiver.Settings, cfg component.Config) error {
	logs, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error {
		kept := plog.NewLogs()
		ld.CopyTo(kept)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.logs = append(r.logs, kept)
		return nil
	})
	if err != nil {
		return err
	}
	metrics, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		kept := pmetric.NewMetrics()
		md.CopyTo(kept)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.metrics = append(r.metrics, kept)
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := factory.CreateLogs(ctx, settings, cfg, logs); err != nil {
		return err
	}
	_, err = factory.CreateMetrics(ctx, settings, cfg, metrics)
	return err
}

// Logs gives the requests of log records that arrived so far, in order.
func (r *Receiver) Logs() []plog.Logs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]plog.Logs(nil), r.logs...)
}

// Metrics gives the requests of metrics that arrived so far, in order.
func (r *Receiver) Metrics() []pmetric.Metrics {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]pmetric.Metrics(nil), r.metrics...)
}

func orLoopback(address string) string {
	if address == "" {
		return "127.0.0.1:0"
	}
	return address
}

func (r *Receiver) keep(ctx context.Context, pd pprofile.Profiles) error {
	if r.consume != nil {
		if err := r.consume(ctx, pd); err != nil {
			return err
		}
	}
	own := pprofile.NewProfiles()
	pd.CopyTo(own) // pd is the receiver's, and only until we return
	r.mu.Lock()
	defer r.mu.Unlock()
	r.received = append(r.received, own)
	close(r.arrived)
	r.arrived = make(chan struct{})
	return nil
}

// Received gives the requests that arrived so far, in order.
func (r *Receiver) Received() []pprofile.Profiles {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]pprofile.Profiles(nil), r.received...)
}

// Wait returns once n requests have arrived, or with ctx's error.
func (r *Receiver) Wait(ctx context.Context, n int) ([]pprofile.Profiles, error) {
	for {
		r.mu.Lock()
		got, arrived := append([]pprofile.Profiles(nil), r.received...), r.arrived
		r.mu.Unlock()
		if len(got) >= n {
			return got, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return got, fmt.Errorf("otlptest: %d of %d requests arrived: %w", len(got), n, ctx.Err())
		}
	}
}

// Shutdown stops the receiver; what it received stays.
func (r *Receiver) Shutdown(ctx context.Context) error { return r.component.Shutdown(ctx) }

type host struct{}

func (host) GetExtensions() map[component.ID]component.Component { return nil }

// addressLog is a log that keeps where the receiver says it listens: there is no other way to learn a port it chose.
type addressLog struct {
	zapcore.LevelEnabler

	mu         sync.Mutex
	http, grpc string
}

func (*addressLog) Enabled(zapcore.Level) bool          { return true }
func (a *addressLog) With([]zapcore.Field) zapcore.Core { return a }
func (*addressLog) Sync() error                         { return nil }
func (a *addressLog) get() (http, grpc string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.http, a.grpc
}
func (a *addressLog) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.AddCore(e, a)
}

func (a *addressLog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range fields {
		switch {
		case f.Key == "endpoint" && e.Message == "Starting HTTP server":
			a.http = "http://" + f.String
		case f.Key == "endpoint" && e.Message == "Starting GRPC server":
			a.grpc = "http://" + f.String
		}
	}
	return nil
}

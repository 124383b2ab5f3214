// SPDX-License-Identifier: Apache-2.0

package pyroscopeexporter

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/consumererror/xconsumererror"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/sink"
	"github.com/heapwire/heapwire/otelcol/pyroscopeexporter/internal/metadata"
)

// pyroscopeExporter turns requests into pushes. It holds no queue and no retry of its own.
type pyroscopeExporter struct {
	cfg       *Config
	set       exporter.Settings
	namer     namer
	telemetry *metadata.TelemetryBuilder
	now       func() time.Time

	sink *pyroscope.Sink // from start on

	// order keeps two dumps of a process from taking a difference to the same third one.
	order [64]sync.Mutex
}

func newExporter(cfg *Config, set exporter.Settings) (*pyroscopeExporter, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	names, err := newNamer(cfg.ProfileName)
	if err != nil {
		return nil, err
	}
	return &pyroscopeExporter{cfg: cfg, set: set, namer: names, telemetry: telemetry, now: time.Now}, nil
}

func (e *pyroscopeExporter) start(ctx context.Context, host component.Host) error {
	client, err := e.cfg.ClientConfig.ToClient(ctx, host.GetExtensions(), e.set.TelemetrySettings)
	if err != nil {
		return fmt.Errorf("making the HTTP client: %w", err)
	}
	e.sink, err = pyroscope.New(pyroscope.Config{
		Address: e.cfg.ClientConfig.Endpoint, TenantID: e.cfg.TenantID, Transport: client.Transport, Timeout: e.cfg.ClientConfig.Timeout,
		Stale: pyroscope.Stale(e.cfg.Stale), StaleSetting: "stale", MaxBytes: e.cfg.MaxProfileBytes, MaxSamples: e.cfg.MaxProfileSamples,
		Version: e.set.BuildInfo.Version, Logger: slog.New(zapslog.NewHandler(e.set.Logger.Core())), Now: e.now,
	})
	if err != nil {
		return err
	}
	return e.telemetry.RegisterExporterPyroscopeSpecialCallback(func(_ context.Context, o metric.Int64Observer) error {
		for kind, n := range e.sink.Counts() {
			o.Observe(int64(n), metric.WithAttributes(attribute.String("kind", kind)))
		}
		return nil
	})
}

func (e *pyroscopeExporter) shutdown(ctx context.Context) error {
	e.telemetry.Shutdown()
	if e.sink == nil {
		return nil
	}
	return e.sink.Close(ctx)
}

// push sends all profiles of a request, each to a series of its own. An error that may be retried has with it what is left
// to be sent: the server recognises no repeat. Profiles that it refuses for good do not keep the others from it.
func (e *pyroscopeExporter) push(ctx context.Context, pd pprofile.Profiles) error {
	read, lost := otlp.Read(pd)
	e.tell(ctx, lost)
	if len(read) == 0 && lost.Total() > 0 {
		return consumererror.NewPermanent(fmt.Errorf("none of %d samples can be read: %w", lost.Total(), lost.First))
	}
	var refused []error
	for i := range read {
		err := e.profile(ctx, &read[i])
		switch {
		case err == nil:
			continue
		case sink.IsPermanent(err):
			refused = append(refused, err)
			continue
		}
		for _, why := range refused {
			// The request goes on without them: the error that is returned is of the rest.
			e.set.Logger.Error("the Pyroscope server refused a profile", zap.Error(why))
		}
		if later := (*sink.RetryAfterError)(nil); errors.As(err, &later) {
			err = exporterhelper.NewThrottleRetry(err, later.Delay)
		}
		return xconsumererror.NewProfiles(err, rest(pd, read[i:]))
	}
	if len(refused) > 0 {
		return consumererror.NewPermanent(fmt.Errorf("%d of %d profiles: %w", len(refused), len(read), errors.Join(refused[:min(len(refused), maxTold)]...)))
	}
	return nil
}

const maxTold = 5

func (e *pyroscopeExporter) tell(ctx context.Context, lost otlp.Lost) {
	if lost.Labels > 0 {
		e.set.Logger.Debug("attributes of samples fit no label", zap.Int("attributes", lost.Labels))
	}
	if lost.Total() == 0 {
		return
	}
	for reason, n := range lost.Samples {
		e.drop(ctx, reason, n)
	}
	e.set.Logger.Warn("samples were left out", zap.Int("samples", lost.Total()), zap.NamedError("first", lost.First))
}

func (e *pyroscopeExporter) drop(ctx context.Context, reason string, samples int) {
	if samples > 0 {
		e.telemetry.ExporterPyroscopeDroppedSamples.Add(ctx, int64(samples), metric.WithAttributes(attribute.String("reason", reason)))
	}
}

// profile pushes one profile, as several if its sample types go by several names.
func (e *pyroscopeExporter) profile(ctx context.Context, p *otlp.Pprof) error {
	pushes, dropped := e.pushes(p)
	for reason, n := range dropped {
		e.drop(ctx, reason, n)
	}
	var errs []error
	for _, it := range pushes {
		if err := e.export(ctx, it); err != nil {
			errs = append(errs, err)
			if !sink.IsPermanent(err) {
				return err
			}
		}
	}
	return sink.Permanent(errors.Join(errs...))
}

func (e *pyroscopeExporter) export(ctx context.Context, it push) error {
	if it.item.Process != "" {
		h := fnv.New32a()
		h.Write([]byte(it.item.Process))
		m := &e.order[h.Sum32()%uint32(len(e.order))]
		m.Lock()
		defer m.Unlock()
	}
	err := e.sink.ExportTo(ctx, &it.item, it.series)
	outcome := "accepted"
	switch {
	case sink.IsPermanent(err):
		outcome = "refused"
	case err != nil:
		outcome = "failed"
	}
	e.telemetry.ExporterPyroscopeProfiles.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
	return err
}

// rest copies a request with nothing but the given profiles left in it.
func rest(pd pprofile.Profiles, left []otlp.Pprof) pprofile.Profiles {
	keep := map[otlp.Place]bool{}
	for _, p := range left {
		for _, at := range p.In {
			keep[at] = true
		}
	}
	out := pprofile.NewProfiles()
	pd.CopyTo(out)
	for i, rp := range out.ResourceProfiles().All() {
		for j, sp := range rp.ScopeProfiles().All() {
			k := -1
			sp.Profiles().RemoveIf(func(pprofile.Profile) bool {
				k++
				return !keep[otlp.Place{Resource: i, Scope: j, Profile: k}]
			})
		}
	}
	out.ResourceProfiles().RemoveIf(func(rp pprofile.ResourceProfiles) bool {
		rp.ScopeProfiles().RemoveIf(func(sp pprofile.ScopeProfiles) bool { return sp.Profiles().Len() == 0 })
		return rp.ScopeProfiles().Len() == 0
	})
	return out
}

// sortedKeys is for everything that must come out the same for the same input.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

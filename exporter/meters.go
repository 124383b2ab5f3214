// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/heapwire/heapwire/exporter/sink"
)

// Meters are a pipeline's own metrics, or those of several together.
type Meters struct {
	conversion, delivery metric.Float64Histogram
	registered           metric.Registration
}

// scopeName names what measures.
const scopeName = "github.com/heapwire/heapwire/exporter"

// NewMeters measures what stats gives, until Close. Without a provider it measures nothing.
func NewMeters(provider metric.MeterProvider, stats func() Stats) (*Meters, error) {
	m := &Meters{}
	if provider == nil {
		return m, nil
	}
	meter := provider.Meter(scopeName)
	var errs [12]error
	counter := func(i int, name, unit, description string) (c metric.Int64ObservableCounter) {
		c, errs[i] = meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return c
	}
	gauge := func(i int, name, unit, description string) (g metric.Int64ObservableGauge) {
		g, errs[i] = meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		return g
	}
	seconds := func(i int, name, description string) (h metric.Float64Histogram) {
		h, errs[i] = meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(.001, .005, .01, .05, .1, .5, 1, 5, 10, 60))
		return h
	}
	var (
		found    = counter(0, "heapwire.exporter.dumps", "{dump}", "Dumps found in the spool.")
		accepted = counter(1, "heapwire.exporter.accepted", "{dump}", "Dumps that a sink accepted.")
		refused  = counter(2, "heapwire.exporter.refused", "{dump}", "Dumps that a sink did not get, by reason: refused, or given_up when overdue or unreadable.")
		dropped  = counter(3, "heapwire.exporter.dropped", "{dump}", "Dumps that left the spool undelivered, by reason: bytes, files, age, unreadable.")
		retried  = counter(4, "heapwire.exporter.retried", "{attempt}", "Attempts after the first.")
		bytes    = counter(5, "heapwire.exporter.bytes", "By", "Size in the spool of the dumps that a sink accepted.")
		killed   = counter(6, "heapwire.exporter.processes.killed", "{process}", "Processes that ended without their last dump.")
		depth    = gauge(7, "heapwire.exporter.spool.depth", "{dump}", "Dumps that wait.")
		age      = gauge(8, "heapwire.exporter.spool.oldest", "s", "Age of the dump that has waited longest.")
	)
	special := counter(11, "heapwire.exporter.special", "{dump}", "Dumps that a sink treated in a way of its own, by kind.")
	m.conversion = seconds(9, "heapwire.exporter.conversion.duration", "Time to convert a dump.")
	m.delivery = seconds(10, "heapwire.exporter.delivery.duration", "Time of one attempt of a sink.")
	for _, err := range errs {
		if err != nil {
			return m, fmt.Errorf("making the pipeline's metrics: %w", err)
		}
	}
	registered, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		reason := func(r string) attribute.KeyValue { return attribute.String("reason", r) }
		o.ObserveInt64(found, int64(s.Dumps))
		o.ObserveInt64(killed, int64(s.Killed))
		o.ObserveInt64(depth, int64(s.Pending))
		o.ObserveInt64(age, int64(s.Oldest/time.Second))
		o.ObserveInt64(dropped, int64(s.ConvertFailed), metric.WithAttributes(reason("unreadable")))
		for why, n := range s.Dropped {
			o.ObserveInt64(dropped, int64(n), metric.WithAttributes(reason(why)))
		}
		for _, w := range s.Sinks {
			name := attribute.String("sink", w.Name)
			o.ObserveInt64(accepted, int64(w.Accepted+w.Events), metric.WithAttributes(name))
			o.ObserveInt64(refused, int64(w.Refused), metric.WithAttributes(name, reason("refused")))
			o.ObserveInt64(refused, int64(w.GivenUp-w.Refused), metric.WithAttributes(name, reason("given_up")))
			o.ObserveInt64(retried, int64(w.Retries), metric.WithAttributes(name))
			o.ObserveInt64(bytes, w.Bytes, metric.WithAttributes(name))
			for kind, n := range w.Counts {
				o.ObserveInt64(special, int64(n), metric.WithAttributes(name, attribute.String("kind", kind)))
			}
		}
		return nil
	}, found, accepted, refused, dropped, retried, bytes, killed, depth, age, special)
	if err != nil {
		return m, fmt.Errorf("registering the pipeline's metrics: %w", err)
	}
	m.registered = registered
	return m, nil
}

// Close ends the measuring of what stats gives.
func (m *Meters) Close() error {
	if m.registered == nil {
		return nil
	}
	return m.registered.Unregister()
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case sink.IsPermanent(err):
		return "refused"
	default:
		return "failed"
	}
}

func (m *Meters) converted(took time.Duration, err error) {
	if m.conversion != nil {
		m.conversion.Record(context.Background(), took.Seconds(), metric.WithAttributes(attribute.String("outcome", outcome(err))))
	}
}

func (m *Meters) delivered(name string, took time.Duration, err error) {
	if m.delivery != nil {
		m.delivery.Record(context.Background(), took.Seconds(),
			metric.WithAttributes(attribute.String("sink", name), attribute.String("outcome", outcome(err))))
	}
}

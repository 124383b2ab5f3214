// SPDX-License-Identifier: Apache-2.0

package sinks

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/sink"
)

// Set is what an environment asks for.
type Set struct {
	Profiles []sink.Sink      // get profiles
	Figures  []sink.Sink      // get the figures of dumps
	Events   []sink.EventSink // get the ends of processes
}

// FromEnv makes the sinks that the standard variables name. One that cannot be made is named in the error; the others are
// returned beside it.
func FromEnv(getenv func(string) string, version string, log *slog.Logger) (Set, error) {
	var (
		set  Set
		errs []error
	)
	add := func(name string, enabled bool, err error, open func() error) {
		if err == nil && enabled {
			err = open()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sink %s: %w", name, err))
		}
	}
	signal := func(name string, signal otlp.Signal, open func(otlp.Config) error) {
		cfg, enabled, err := otlp.ConfigFor(signal, getenv)
		cfg.Version, cfg.Logger = version, log
		add(name, enabled, err, func() error { return open(cfg) })
	}
	signal("otlp", otlp.Profiles, func(cfg otlp.Config) error {
		s, err := otlp.New(cfg)
		if err == nil {
			set.Profiles = append(set.Profiles, s)
		}
		return err
	})
	signal("otlp-metrics", otlp.Metrics, func(cfg otlp.Config) error {
		s, err := otlp.NewMetrics(cfg)
		if err == nil {
			set.Figures = append(set.Figures, s)
		}
		return err
	})
	signal("otlp-logs", otlp.Logs, func(cfg otlp.Config) error {
		s, err := otlp.NewLogs(cfg)
		if err == nil {
			set.Events = append(set.Events, s)
		}
		return err
	})
	cfg, enabled, err := pyroscope.ConfigFromEnv(getenv)
	cfg.Version, cfg.Logger = version, log
	add("pyroscope", enabled, err, func() error {
		s, err := pyroscope.New(cfg)
		if err == nil {
			set.Profiles = append(set.Profiles, s)
		}
		return err
	})
	return set, errors.Join(errs...)
}

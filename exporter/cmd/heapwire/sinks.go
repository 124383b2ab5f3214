// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/heapwire/heapwire/exporter/file"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/pyroscope"
	"github.com/heapwire/heapwire/exporter/sink"
)

const defaultOut = "heapwire-out"

// sinkFlags are the flags that mean the same as a standard variable, and beat it.
type sinkFlags struct {
	variables map[string]*string
	out       string
	otlpJSON  bool
}

func (f *sinkFlags) register(flags *pflag.FlagSet) {
	f.variables = map[string]*string{}
	for _, v := range []struct{ flag, variable, help string }{
		{"otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", "send OTLP profiles to this `URL`"},
		{"otlp-protocol", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc, http/protobuf or http/json"},
		{"pyroscope", "PYROSCOPE_SERVER_ADDRESS", "push to the Pyroscope server at this `URL`"},
	} {
		f.variables[v.variable] = flags.String(v.flag, "", fmt.Sprintf("%s (%s)", v.help, v.variable))
	}
	flags.StringVar(&f.out, "out", "", "write profiles, the newest also as flame graph, into `DIR` (without any sink: "+defaultOut+")")
	flags.BoolVar(&f.otlpJSON, "otlp-json", false, "write OTLP as JSON too, beside the profiles")
}

func (f *sinkFlags) getenv(key string) string {
	if v := f.variables[key]; v != nil && *v != "" {
		return *v
	}
	return os.Getenv(key)
}

// open makes the sinks that flags and environment name, and the file sink where they name none. A sink that cannot be
// made is named in the error; the others are returned beside it.
func (f *sinkFlags) open(log *slog.Logger) (sinks []sink.Sink, out string, err error) {
	var errs []error
	add := func(name string, enabled bool, err error, open func() (sink.Sink, error)) {
		if err == nil && enabled {
			var s sink.Sink
			if s, err = open(); err == nil {
				sinks = append(sinks, s)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sink %s: %w", name, err))
		}
	}
	otlpConfig, enabled, err := otlp.ConfigFromEnv(f.getenv)
	otlpConfig.Version, otlpConfig.Logger = currentVersion(), log
	add("otlp", enabled, err, func() (sink.Sink, error) { return otlp.New(otlpConfig) })
	pyroscopeConfig, enabled, err := pyroscope.ConfigFromEnv(f.getenv)
	pyroscopeConfig.Version, pyroscopeConfig.Logger = currentVersion(), log
	add("pyroscope", enabled, err, func() (sink.Sink, error) { return pyroscope.New(pyroscopeConfig) })
	out = f.out
	if out == "" && len(sinks) == 0 {
		out = defaultOut
	}
	if out != "" {
		add("file", true, nil, func() (sink.Sink, error) {
			return file.New(file.Config{Dir: out, JSON: f.otlpJSON, Version: currentVersion()})
		})
	}
	return sinks, out, errors.Join(errs...)
}

// openSignals makes the sinks for what goes beside the profiles: the figures of dumps, and the ends of processes.
func (f *sinkFlags) openSignals(log *slog.Logger) (sinks []sink.Sink, events []sink.EventSink, err error) {
	var errs []error
	for _, signal := range []otlp.Signal{otlp.Metrics, otlp.Logs} {
		cfg, enabled, err := otlp.ConfigFor(signal, f.getenv)
		cfg.Version, cfg.Logger = currentVersion(), log
		if err == nil && enabled {
			switch signal {
			case otlp.Metrics:
				var s *otlp.MetricSink
				if s, err = otlp.NewMetrics(cfg); err == nil {
					sinks = append(sinks, s)
				}
			default:
				var s *otlp.LogSink
				if s, err = otlp.NewLogs(cfg); err == nil {
					events = append(events, s)
				}
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sink otlp-%s: %w", strings.ToLower(string(signal)), err))
		}
	}
	return sinks, events, errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/heapwire/heapwire/exporter/file"
	"github.com/heapwire/heapwire/exporter/sinks"
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

// opened are the sinks of a call.
type opened struct {
	sinks.Set
	out string // folder of the file sink, "" without one
}

// open makes the sinks that flags and environment name, and the file sink where they name none. A sink that cannot be
// made is named in the error; the others are returned beside it.
func (f *sinkFlags) open(log *slog.Logger) (opened, error) {
	set, err := sinks.FromEnv(f.getenv, currentVersion(), log)
	o := opened{Set: set, out: f.out}
	if o.out == "" && len(o.Profiles) == 0 {
		o.out = defaultOut
	}
	if o.out != "" {
		s, failed := file.New(file.Config{Dir: o.out, JSON: f.otlpJSON, Version: currentVersion()})
		if failed != nil {
			return o, errors.Join(err, fmt.Errorf("sink file: %w", failed))
		}
		o.Profiles = append(o.Profiles, s)
	}
	return o, err
}

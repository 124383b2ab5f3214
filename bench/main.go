// SPDX-License-Identifier: Apache-2.0

// Bench measures what docs/performance.md reports, and prints it as the tables that stand there: how fast a dump becomes
// pprof and OTLP, and what the shim costs the job.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	var o shimOptions
	var only string
	flag.StringVar(&o.shim, "shim", "bin/libheapwire.so", "the shim to measure")
	flag.StringVar(&o.window, "window", "build/shim/libheapwire_test.so", "the same with a window into its hook")
	flag.StringVar(&o.versions, "pythons", "3.11,3.12,3.13", "interpreters, by version")
	flag.StringVar(&o.jobs, "jobs", "bench/jobs", "folder of the programs")
	flag.StringVar(&o.build, "build", "build/bench", "folder for what is built and installed")
	flag.StringVar(&o.svg, "svg", "", "file for the picture of the first interpreter's figures")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds; each runs every variant of every program once")
	flag.IntVar(&o.peerRounds, "peer-rounds", 3, "rounds of other profilers, which take long")
	flag.BoolVar(&o.peers, "peers", true, "install memray and scalene by pip and measure them too")
	flag.StringVar(&only, "only", "", "convert or shim: measure only this")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, only, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, only string, o shimOptions) error {
	if only != "" && only != "convert" && only != "shim" {
		return fmt.Errorf("-only %s: want convert or shim", only)
	}
	fmt.Printf("%s, %d CPUs, %s\n", cpuModel(), runtime.NumCPU(), runtime.Version())
	if only != "shim" {
		if err := measureConvert(os.Stdout); err != nil {
			return err
		}
	}
	if only == "convert" {
		return nil
	}
	for _, path := range []*string{&o.shim, &o.window, &o.jobs, &o.build} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	return measureShim(ctx, os.Stdout, o)
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

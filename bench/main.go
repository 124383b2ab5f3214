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
	var job jobOptions
	var only string
	flag.StringVar(&job.shim, "shim", "bin/libheapwire.so", "the shim to measure")
	flag.StringVar(&job.python, "python", "python3", "interpreter")
	flag.StringVar(&job.programs, "jobs", "bench/jobs", "folder of the programs")
	flag.IntVar(&job.rounds, "rounds", 15, "rounds; each runs every variant of every program once")
	flag.StringVar(&only, "only", "", "convert or job: measure only this")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, only, job); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, only string, job jobOptions) error {
	if only != "" && only != "convert" && only != "job" {
		return fmt.Errorf("-only %s: want convert or job", only)
	}
	fmt.Printf("%s, %d CPUs, %s\n", cpuModel(), runtime.NumCPU(), runtime.Version())
	if only != "job" {
		if err := measureConvert(os.Stdout); err != nil {
			return err
		}
	}
	if only != "convert" {
		path, err := filepath.Abs(job.shim)
		if err != nil {
			return err
		}
		job.shim = path
		return measureJob(ctx, os.Stdout, job)
	}
	return nil
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

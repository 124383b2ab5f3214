// SPDX-License-Identifier: Apache-2.0

// Demo profiles a leaking Python program for some seconds and shows every place the answer goes to: the summary of
// heapwire run, an OTLP receiver (the Collector's own, started here on loopback) and files with a flame graph.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
)

// leaking is what the table must show (examples/leak_basic).
const leaking = "remember_upload"

type options struct {
	heapwire, python, program, out string
	interval                       time.Duration
	rounds                         int
}

func main() {
	var o options
	flag.StringVar(&o.heapwire, "heapwire", "bin/heapwire", "the program to show")
	flag.StringVar(&o.python, "python", "python3", "interpreter")
	flag.StringVar(&o.program, "program", "examples/leak_basic/leak_basic.py", "what to profile")
	flag.StringVar(&o.out, "out", "heapwire-out", "folder for profiles and flame graph")
	flag.DurationVar(&o.interval, "interval", 2*time.Second, "time between two dumps")
	flag.IntVar(&o.rounds, "rounds", 40, "rounds the program serves, four a second")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := show(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func show(ctx context.Context, o options) (err error) {
	receiver, err := otlptest.Start(ctx, otlptest.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, receiver.Shutdown(context.WithoutCancel(ctx))) }()

	began := time.Now()
	args := []string{"run", "--interval", o.interval.String(), "--out", o.out, "--", o.python, o.program, "--rounds", strconv.Itoa(o.rounds)}
	fmt.Printf("$ OTEL_EXPORTER_OTLP_ENDPOINT=%s %s %s\n\n", receiver.HTTP, filepath.Base(o.heapwire), strings.Join(args, " "))
	job := exec.CommandContext(ctx, o.heapwire, args...)
	job.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.HTTP, "OTEL_SERVICE_NAME=demo")
	job.Stdout, job.Stderr = os.Stdout, os.Stderr
	if err := job.Run(); err != nil {
		return fmt.Errorf("running the job: %w", err)
	}

	newest, err := newestFile(o.out, ".pb.gz", began)
	if err != nil {
		return err
	}
	table, err := exec.CommandContext(ctx, o.heapwire, "convert", "--format", "text", "--rows", "12", newest).Output()
	if err != nil {
		return fmt.Errorf("making the table of %s: %w", newest, err)
	}
	fmt.Printf("\nWho holds the memory (%s)\n%s", newest, table)
	if !strings.Contains(string(table), leaking) {
		return fmt.Errorf("the table does not name %s, which leaks", leaking)
	}

	received := receiver.Received()
	if len(received) == 0 {
		return errors.New("the OTLP receiver got nothing")
	}
	fmt.Printf("\nWhat the OTLP receiver got: %d requests\n", len(received))
	for i, one := range received {
		stacks, err := otlptest.Stacks(one)
		if err != nil {
			return err
		}
		sum := stacks.Sum()
		fmt.Printf("  %2d  %5d stacks  %8.1f MiB live  %8d objects\n",
			i+1, len(stacks), float64(sum["inuse_space/bytes"])/(1<<20), sum["inuse_objects/count"])
	}

	graph, err := newestFile(o.out, ".html", began)
	if err != nil {
		return err
	}
	fmt.Printf("\nFlame graph: %s\n", graph)
	return nil
}

// newestFile is the youngest file below a folder with the suffix, written since a moment.
func newestFile(folder, suffix string, since time.Time) (string, error) {
	type file struct {
		path string
		time time.Time
	}
	var files []file
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, suffix) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		// File systems with coarse times may date a file a little before the clock.
		if info.ModTime().After(since.Add(-time.Second)) {
			files = append(files, file{path, info.ModTime()})
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("looking for what was written: %w", err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("no *%s was written to %s", suffix, folder)
	}
	return slices.MaxFunc(files, func(a, b file) int { return a.time.Compare(b.time) }).path, nil
}

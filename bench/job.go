// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

type jobOptions struct {
	shim, python, programs string
	rounds                 int
}

// A variant is one way to run the same program.
type variant struct {
	name string
	env  func(shim, spool string) []string
}

var variants = []variant{
	{"glibc", func(string, string) []string { return nil }},
	{"glibc again", func(string, string) []string { return nil }},
	{"shim, nothing sampled", func(shim, spool string) []string {
		return []string{"LD_PRELOAD=" + shim, "HEAPWIRE_SPOOL=" + spool, "HEAPWIRE_TARGET=none"}
	}},
	{"shim", func(shim, spool string) []string {
		return []string{"LD_PRELOAD=" + shim, "HEAPWIRE_SPOOL=" + spool}
	}},
	{"shim, 64 KiB", func(shim, spool string) []string {
		return []string{"LD_PRELOAD=" + shim, "HEAPWIRE_SPOOL=" + spool, "HEAPWIRE_SAMPLE_BYTES=65536"}
	}},
}

// A run is what one process cost: the work as the program itself measured it, and the whole process.
type run struct {
	CPU  float64       `json:"cpu_s"`
	Wall float64       `json:"wall_s"`
	rest time.Duration // CPU time of start, end and last dump
}

// measureJob runs every program under every variant, interleaved: the variants of a round are neighbours in time, in
// changing order, so that a machine that changes its speed changes it for all of them.
func measureJob(ctx context.Context, w io.Writer, o jobOptions) error {
	programs, err := filepath.Glob(filepath.Join(o.programs, "*.py"))
	if err != nil {
		return fmt.Errorf("listing the programs: %w", err)
	}
	if len(programs) == 0 {
		return fmt.Errorf("no programs in %s", o.programs)
	}
	if _, err := os.Stat(o.shim); err != nil {
		return fmt.Errorf("%w: run make build", err)
	}
	spool, err := os.MkdirTemp("", "heapwire-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(spool) }()

	runs := map[string][][]run{} // by program: variant, round
	for round := range o.rounds {
		for _, program := range programs {
			if runs[program] == nil {
				runs[program] = make([][]run, len(variants))
			}
			for i := range variants {
				v := (i + round) % len(variants)
				r, err := runOnce(ctx, o.python, program, variants[v].env(o.shim, spool))
				if err != nil {
					return fmt.Errorf("%s under %s: %w", filepath.Base(program), variants[v].name, err)
				}
				runs[program][v] = append(runs[program][v], r)
			}
		}
	}

	version, err := exec.CommandContext(ctx, o.python, "--version").Output()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThe job's cost ÷ plain glibc, medians of %d paired rounds (quartiles), %s\n\n", o.rounds, strings.TrimSpace(string(version)))
	fmt.Fprintln(w, "| program | variant | CPU time | wall time | CPU of start and end, ms |")
	fmt.Fprintln(w, "|---|---|---|---|---|")
	for _, program := range programs {
		name := strings.TrimSuffix(filepath.Base(program), ".py")
		base := runs[program][0]
		cpu := func(r run) float64 { return r.CPU }
		wall := func(r run) float64 { return r.Wall }
		rest := func(r run) float64 { return float64(r.rest) / float64(time.Millisecond) }
		fmt.Fprintf(w, "| %s | %s | %.3f s | %.3f s | %.0f |\n", name, variants[0].name,
			quantile(each(base, cpu), 0.5), quantile(each(base, wall), 0.5), quantile(each(base, rest), 0.5))
		for v := 1; v < len(variants); v++ {
			fmt.Fprintf(w, "| | %s | %s | %s | %.0f |\n", variants[v].name,
				ratio(runs[program][v], base, cpu), ratio(runs[program][v], base, wall), quantile(each(runs[program][v], rest), 0.5))
		}
	}
	return nil
}

func runOnce(ctx context.Context, python, program string, env []string) (run, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, program)
	cmd.Env = pythons.CleanEnv(env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return run{}, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	var r run
	if err := json.Unmarshal(out, &r); err != nil {
		return run{}, fmt.Errorf("reading its figures: %w", err)
	}
	if r.CPU <= 0 || r.Wall <= 0 {
		return run{}, errors.New("it measured nothing")
	}
	r.rest = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - time.Duration(r.CPU*float64(time.Second))
	return r, nil
}

func each(runs []run, figure func(run) float64) []float64 {
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = figure(r)
	}
	return values
}

// ratio is the median of the rounds' own ratios, with quartiles.
func ratio(runs, base []run, figure func(run) float64) string {
	ratios := make([]float64, len(runs))
	for i := range runs {
		ratios[i] = figure(runs[i]) / figure(base[i])
	}
	return fmt.Sprintf("%.3f (%.3f–%.3f)", quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75))
}

// quantile interpolates between the two nearest values.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

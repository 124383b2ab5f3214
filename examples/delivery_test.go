// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
)

// leakTo runs leak_basic with some dumps on the way and returns every profile of its output folder.
func leakTo(t *testing.T, env ...string) []*profile.Profile {
	t.Helper()
	py := onePython(t)
	j := startRun(t, env, []string{"--interval", "200ms"}, py.Path, filepath.Join(here, "leak_basic/leak_basic.py"),
		"--rounds", "10", "--blocks", "64", "--pause", "0.05")
	j.succeed()
	paths, err := j.profilePaths(0)
	if err != nil || len(paths) < 2 {
		t.Fatalf("%d profiles (%v), want two or more\n%s", len(paths), err, j.report())
	}
	var all []*profile.Profile
	for _, path := range paths {
		p, err := readProfile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// What a receiver that nobody here wrote was sent is what lies on disk, stack by stack.
func TestWhatArrivesOverOTLPIsWhatLiesOnDisk(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), jobLimit)
			defer cancel()
			receiver, err := otlptest.Start(ctx, otlptest.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := receiver.Shutdown(context.Background()); err != nil {
					t.Error(err)
				}
			})
			endpoint := receiver.HTTP
			if protocol == "grpc" {
				endpoint = receiver.GRPC
			}
			onDisk := leakTo(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
				"OTEL_EXPORTER_OTLP_TIMEOUT="+fmt.Sprint((10*time.Second).Milliseconds()))
			received := receiver.Received()
			if len(received) == 0 {
				t.Fatal("nothing arrived")
			}
			arrived, err := otlptest.Stacks(received...)
			if err != nil {
				t.Fatal(err)
			}
			sameTotals(t, arrived, otlptest.PprofStacks(onDisk...))
			t.Logf("%d requests for %d profiles, %d stacks, %v", len(received), len(onDisk), len(arrived), arrived.Sum())
		})
	}
}

// The same for Pyroscope's push API, served by code generated from its published definition.
func TestWhatArrivesAtPyroscopeIsWhatLiesOnDisk(t *testing.T) {
	t.Parallel()
	server := pyroscopetest.Start()
	t.Cleanup(server.Close)
	onDisk := leakTo(t, "PYROSCOPE_SERVER_ADDRESS="+server.URL)
	pushed := server.Profiles()
	for _, p := range pushed {
		withoutFiles(p)
	}
	arrived := otlptest.PprofStacks(pushed...)
	sameTotals(t, arrived, otlptest.PprofStacks(onDisk...))
	t.Logf("%d pushes for %d profiles, %d stacks, %v", len(pushed), len(onDisk), len(arrived), arrived.Sum())
}

// withoutFiles takes the file off the names of Python functions, "handle (server.py)": Pyroscope's flame graphs tell
// functions apart by their names alone, so the sink puts it there.
func withoutFiles(p *profile.Profile) {
	for _, f := range p.Function {
		name, file, ok := strings.Cut(strings.TrimSuffix(f.Name, ")"), " (")
		if ok && strings.HasSuffix(f.Filename, file) {
			f.Name = name
		}
	}
}

func sameTotals(t *testing.T, got, want otlptest.Totals) {
	t.Helper()
	if sum := want.Sum(); sum["inuse_space/bytes"] == 0 {
		t.Fatalf("the profiles on disk hold nothing: %v", sum)
	}
	differing := 0
	for _, stack := range slices.Sorted(maps.Keys(want)) {
		if !maps.Equal(got[stack], want[stack]) {
			differing++
			if differing <= 3 {
				t.Errorf("got %v, want %v for\n%s", got[stack], want[stack], stack)
			}
		}
	}
	for stack := range got {
		if want[stack] == nil {
			differing++
			if differing <= 3 {
				t.Errorf("%v came from nowhere:\n%s", got[stack], stack)
			}
		}
	}
	if differing > 0 {
		t.Errorf("%d of %d stacks differ; totals %v, want %v", differing, len(want), got.Sum(), want.Sum())
	}
}

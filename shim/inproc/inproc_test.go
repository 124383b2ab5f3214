// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
)

// library is what make build leaves in bin, or what HEAPWIRE_INPROC_LIB names.
func library(t *testing.T) string {
	t.Helper()
	path := os.Getenv("HEAPWIRE_INPROC_LIB")
	if path == "" {
		path = filepath.Join("..", "..", "bin", "libheapwire_inproc.so")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no library to load: %v", err)
	}
	return path
}

// TestTheLibraryLeavesTheProgramAlone loads the library into an interpreter: handlers stay, forked children run nothing of
// it and hold no claim, memory and the time to stop are within their budgets, and what lies in the spool is delivered.
func TestTheLibraryLeavesTheProgramAlone(t *testing.T) {
	lib := library(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	r, err := otlptest.Start(t.Context(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown(context.Background())
	spool := t.TempDir()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(spool, strings.NewReplacer("-", "_").Replace(host)+"-4194301-1")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	identity := fmt.Sprintf(`{"schema":1,"host":%q,"pid":4194301,"start_ticks":1,"service_name":"trainer"}`, host)
	if err := os.WriteFile(filepath.Join(folder, "process.json"), []byte(identity), 0o600); err != nil {
		t.Fatal(err)
	}
	d := dumpgen.Dump{SampleBytes: 512 << 10, Threads: []string{""}}
	for i := range uint32(2000) {
		d.Functions = append(d.Functions, dumpgen.Function{ID: i + 1, Name: fmt.Sprintf("f%d", i), File: "/app.py", Line: 1})
		frames := []uint64{dumpgen.Token(i+1, 2)}
		for depth := range uint32(20) {
			frames = append(frames, dumpgen.Token((i+depth)%2000+1, 3))
		}
		d.Stacks = append(d.Stacks, dumpgen.Stack{Frames: frames, Objects: 3, Bytes: 3 << 20})
	}
	var text bytes.Buffer
	if err := d.Write(&text); err != nil {
		t.Fatal(err)
	}
	for seq := 1; seq <= 20; seq++ {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%06d.interval.heap", seq)), text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, filepath.Join("testdata", "probe.py"), lib, spool)
	cmd.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+r.HTTP)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var got struct {
		Start            int              `json:"start"`
		HandlersChanged  map[string][]any `json:"handlers_changed"`
		Left             []string         `json:"left"`
		ResidentBytes    int64            `json:"resident_bytes"`
		Threads          int              `json:"threads"`
		UnblockedSignals []int            `json:"unblocked_signals"`
		Sigterm          []string         `json:"sigterm"`
		ChildrenUnharmed int              `json:"children_unharmed"`
		StopSeconds      float64          `json:"stop_seconds"`
		StartSeconds     float64          `json:"start_seconds"`
		Says             []string         `json:"says"`
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("resident %.1f MiB, %d threads, started in %.0f ms, stopped in %.0f ms", float64(got.ResidentBytes)/(1<<20), got.Threads, got.StartSeconds*1000, got.StopSeconds*1000)
	if got.Start != 0 || len(got.Says) > 0 {
		t.Errorf("start gave %d, said %q", got.Start, got.Says)
	}
	if len(got.HandlersChanged) > 0 {
		t.Errorf("handlers changed: %v", got.HandlersChanged)
	}
	// SIGINT, SIGTERM, SIGHUP, SIGCHLD's handler and the program's own signals must find no thread of ours.
	for _, s := range []int{1, 2, 3, 10, 12, 13, 14, 15} {
		if slices.Contains(got.UnblockedSignals, s) {
			t.Errorf("signal %d may be delivered to a thread of the runtime", s)
		}
	}
	if !slices.Equal(got.Sigterm, []string{"TERM"}) || got.ChildrenUnharmed != 50 {
		t.Errorf("SIGTERM seen by the program: %v; children unharmed: %d of 50", got.Sigterm, got.ChildrenUnharmed)
	}
	if len(got.Left) > 0 || len(r.Received()) != 20 || len(r.Logs()) != 1 {
		t.Errorf("left %v, %d profiles and %d log records arrived", got.Left, len(r.Received()), len(r.Logs()))
	}
	if got.StopSeconds > 1 {
		t.Errorf("stopping took %.2f s", got.StopSeconds)
	}
	if got.ResidentBytes > 32<<20 {
		t.Errorf("%d bytes resident, want 32 MiB at most", got.ResidentBytes)
	}
}

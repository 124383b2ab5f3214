// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/convert/otlp"
)

// measureConvert prints the speed of each step from dump to OTLP, in MB of dump a second on one core.
func measureConvert(w io.Writer) error {
	// One core, the collector included: what the budget is about.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))

	fmt.Fprintln(w, "\nDump to pprof to OTLP, stacks of 20 to 40 frames, half of them Python's, MB of dump a second on one core")
	fmt.Fprintln(w)
	fmt.Fprintln(w, "| stacks | dump MB | dump → pprof | pprof → `.pb.gz` | pprof → OTLP | dump → pprof → OTLP | OTLP ÷ dump | memory ÷ dump |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|")
	for _, stacks := range []int{1_000, 10_000, 100_000} {
		var text bytes.Buffer
		shape := dumpgen.Options{Stacks: stacks, Depth: 40, PythonDepth: 20, Functions: min(stacks*2, 20_000)}
		if err := dumpgen.Write(&text, shape); err != nil {
			return err
		}
		input := text.Bytes()
		var heap *convert.Heap
		parse, err := speed(len(input), func() (err error) {
			heap, err = convert.HeapDump(bytes.NewReader(input), convert.Options{Name: "bench"})
			return err
		})
		if err != nil {
			return err
		}
		if len(heap.Warnings) > 0 || len(heap.Profile.Sample) != stacks {
			return fmt.Errorf("the dump of %d stacks became %d samples, warnings %q", stacks, len(heap.Profile.Sample), heap.Warnings)
		}
		gz, err := speed(len(input), func() error { return heap.Profile.Write(io.Discard) })
		if err != nil {
			return err
		}
		var request []byte
		build, err := speed(len(input), func() error {
			request, err = encode(heap)
			return err
		})
		if err != nil {
			return err
		}
		whole := func() error {
			heap, err := convert.HeapDump(bytes.NewReader(input), convert.Options{Name: "bench"})
			if err == nil {
				_, err = encode(heap)
			}
			return err
		}
		all, err := speed(len(input), whole)
		if err != nil {
			return err
		}
		heap = nil
		peak, err := peakHeap(whole)
		if err != nil {
			return err
		}
		size := float64(len(input))
		fmt.Fprintf(w, "| %d | %.1f | %.0f | %.0f | %.0f | %.0f | %.2f | %.1f |\n",
			stacks, size/1e6, parse, gz, build, all, float64(len(request))/size, float64(peak)/size)
	}
	return nil
}

func encode(heap *convert.Heap) ([]byte, error) {
	return otlp.Encode(heap.Profile, otlp.Options{Time: time.Unix(1764400000, 0)}, otlp.Reference)
}

// speed repeats work for about two seconds, at least three times, and returns MB a second of the fastest run.
func speed(size int, work func() error) (float64, error) {
	var best time.Duration
	began := time.Now()
	for n := 0; n < 3 || time.Since(began) < 2*time.Second; n++ {
		runtime.GC()
		start := time.Now()
		if err := work(); err != nil {
			return 0, err
		}
		if took := time.Since(start); best == 0 || took < best {
			best = took
		}
	}
	return float64(size) / 1e6 / best.Seconds(), nil
}

// peakHeap is how far the Go heap rose during work, garbage not yet collected included.
func peakHeap(work func() error) (uint64, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one for the watcher
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var peak atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(time.Millisecond); ; {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak.Store(max(peak.Load(), now.HeapAlloc))
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	err := work()
	close(stop)
	<-done
	return peak.Load() - min(peak.Load(), before.HeapAlloc), err
}

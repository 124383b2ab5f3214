// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"bytes"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
)

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		name string
		opts dumpgen.Options
	}{
		{"1k", dumpgen.Options{Stacks: 1_000, PythonDepth: 15}},
		{"10k", dumpgen.Options{Stacks: 10_000, PythonDepth: 15, Functions: 10_000}},
		{"100k", dumpgen.Options{Stacks: 100_000, PythonDepth: 15, Functions: 30_000}},
		{"100k-shallow", dumpgen.Options{Stacks: 100_000, Depth: 8, PythonDepth: 4, Functions: 30_000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var text bytes.Buffer
			if err := dumpgen.Write(&text, c.opts); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(text.Len()))
			b.ReportAllocs()
			var before, after, live runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			cpu := cpuTime(b)
			var dump *jemalloc.Dump
			n := 0
			for b.Loop() {
				var err error
				dump, err = jemalloc.Parse(bytes.NewReader(text.Bytes()), jemalloc.Options{})
				if err != nil || len(dump.Profile.Sample) != c.opts.Stacks {
					b.Fatalf("error %v, %d samples, want %d", err, len(dump.Profile.Sample), c.opts.Stacks)
				}
				n++
			}
			cpu = cpuTime(b) - cpu
			runtime.ReadMemStats(&after)
			runtime.GC()
			runtime.ReadMemStats(&live)
			runtime.KeepAlive(dump)
			size := float64(text.Len())
			// On a shared machine the wall clock measures the neighbours too.
			b.ReportMetric(size*float64(n)/1e6/cpu.Seconds(), "MB/cpu-s")
			// Everything allocated, garbage included, bounds the memory from above: DESIGN 6 wants <= 4 times the file.
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(n)/size, "alloc/file")
			b.ReportMetric((float64(live.HeapAlloc)-float64(before.HeapAlloc))/size, "result/file")
		})
	}
}

// cpuTime is what this process has used so far, with the garbage collector's share.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

package jemalloc_test

import (
	"bytes"
	"runtime"
	"testing"

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
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			n := 0
			for b.Loop() {
				dump, err := jemalloc.Parse(bytes.NewReader(text.Bytes()), jemalloc.Options{})
				if err != nil || len(dump.Profile.Sample) != c.opts.Stacks {
					b.Fatalf("error %v, %d samples, want %d", err, len(dump.Profile.Sample), c.opts.Stacks)
				}
				n++
			}
			// Everything allocated, garbage included, bounds the memory from above: DESIGN 6 wants <= 4 times the file.
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(n)/float64(text.Len()), "alloc/file")
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

// Memory follows what is distinct: ten times the events cost two bytes a memo slot more.
func TestEventsCostNoObjects(t *testing.T) {
	cost := func(steps int) (allocations, bytes1 uint64, events int64) {
		_, data := generate(t, snapgen.Options{Steps: steps})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s, err := torchmem.Read(bytes.NewReader(data), torchmem.Options{})
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs, after.TotalAlloc - before.TotalAlloc, s.Devices[0].Events
	}
	fewAllocations, fewBytes, fewEvents := cost(100)
	manyAllocations, manyBytes, manyEvents := cost(1000)
	if manyEvents < 9*fewEvents {
		t.Fatalf("%d and %d events", fewEvents, manyEvents)
	}
	if manyAllocations > fewAllocations+uint64(manyEvents)/100 {
		t.Errorf("%d allocations for %d events, %d for %d", fewAllocations, fewEvents, manyAllocations, manyEvents)
	}
	// Three slots an event of two bytes each, and the page that is not full.
	if limit := fewBytes + uint64(manyEvents)*6 + 256<<10; manyBytes > limit {
		t.Errorf("%d bytes for %d events, %d for %d: want %d at most", fewBytes, fewEvents, manyBytes, manyEvents, limit)
	}
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name string
		o    snapgen.Options
	}{
		{"python", snapgen.Options{Steps: 400, Depth: 12}},
		{"cpp", snapgen.Options{Steps: 300, Depth: 12, CPP: true}},
		{"5000stacks", snapgen.Options{Steps: 1500, Depth: 12, Stacks: 5000}},
		{"pickler", snapgen.Options{Steps: 400, Depth: 12, Form: snapgen.FormCPP}},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, data := generate(b, c.o)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := torchmem.Read(bytes.NewReader(data), torchmem.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

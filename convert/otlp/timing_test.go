// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"testing"

	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/otlp/profiletest"
)

var shapes = []struct {
	name string
	profiletest.Shape
}{
	{"1k", profiletest.Shape{Stacks: 1000, Depth: 40, Functions: 1500, Types: 2, Seed: 1}},
	{"10k", profiletest.Shape{Stacks: 10_000, Depth: 60, Functions: 10_000, Types: 2, Seed: 1}},
	{"10k-accum", profiletest.Shape{Stacks: 10_000, Depth: 60, Functions: 10_000, Types: 4, Seed: 1}},
}

// dumpBytes is the least size of a jemalloc dump of the shape: " 0x" and twelve digits a frame, and two lines of counts a
// stack, without mappings and frame table.
func dumpBytes(s profiletest.Shape) int { return s.Stacks * (s.Depth*15 + 2*24) }

func BenchmarkEncode(b *testing.B) {
	for _, s := range shapes {
		b.Run(s.name, func(b *testing.B) {
			p := profiletest.Generate(s.Shape)
			dump := dumpBytes(s.Shape)
			b.SetBytes(int64(dump)) // so that MB/s is dump read
			b.ReportAllocs()
			var size int
			for b.Loop() {
				body, err := otlp.Encode(p, options(), otlp.Reference)
				if err != nil {
					b.Fatal(err)
				}
				size = len(body)
			}
			b.ReportMetric(float64(size), "request-bytes")
			b.ReportMetric(float64(size)/float64(dump), "request/dump")
		})
	}
}

// The budget: an OTLP request is at most half of the dump, before compression.
func TestRequestIsAtMostHalfOfTheDump(t *testing.T) {
	for _, s := range shapes {
		body, err := otlp.Encode(profiletest.Generate(s.Shape), options(), otlp.Reference)
		if err != nil {
			t.Fatal(err)
		}
		if dump := dumpBytes(s.Shape); 2*len(body) > dump {
			t.Errorf("%s: a request of %d bytes for a dump of %d", s.name, len(body), dump)
		} else {
			t.Logf("%s: request %d bytes, dump at least %d, ratio %.2f", s.name, len(body), dump, float64(len(body))/float64(dump))
		}
	}
}

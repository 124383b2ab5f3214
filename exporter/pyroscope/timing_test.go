// SPDX-License-Identifier: Apache-2.0

package pyroscope_test

import (
	"testing"

	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/exporter/pyroscope"
)

func BenchmarkShapeAndSplit(b *testing.B) {
	it := item(profiletest.Generate(profiletest.Shape{Stacks: 10_000, Depth: 60, Functions: 10_000, Types: 2, Seed: 1}))
	b.ReportAllocs()
	for b.Loop() {
		p, err := pyroscope.Shape(it)
		if err != nil {
			b.Fatal(err)
		}
		parts, err := pyroscope.Split(p)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(parts), "parts")
	}
}

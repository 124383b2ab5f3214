// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// What is written from the end reads from the front, from whatever size on the buffer grows.
func TestBackwardReadsForward(t *testing.T) {
	var numbers []uint64
	for bit := range 64 {
		numbers = append(numbers, 1<<bit-1, 1<<bit, 1<<bit+1)
	}
	numbers = append(numbers, math.MaxUint64)
	var list []int32
	for _, n := range numbers {
		if n <= math.MaxInt32 {
			list = append(list, int32(n))
		}
	}
	long := strings.Repeat("ü", 300)
	for _, size := range []int{0, 1, 10, 100, 1000, 100_000} {
		w := newBackward(size)
		w.text(5, long)
		w.fixed64(4, math.MaxUint64-1)
		w.packed(3, list)
		w.packed(3, nil)
		since := w.written()
		for _, n := range slices.Backward(numbers) {
			w.numberAlways(1, n)
			w.number(2, 0)
		}
		w.message(2, since)

		b := w.bytes()
		field := func(want protowire.Number, kind protowire.Type) {
			t.Helper()
			number, got, n := protowire.ConsumeTag(b)
			if n < 0 || number != want || got != kind {
				t.Fatalf("from %d bytes: field %d of type %d, want %d of %d", size, number, got, want, kind)
			}
			b = b[n:]
		}
		bytes := func(number protowire.Number) []byte {
			t.Helper()
			field(number, protowire.BytesType)
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				t.Fatal(protowire.ParseError(n))
			}
			b = b[n:]
			return v
		}
		varints := func(b []byte, tagged bool) (got []uint64) {
			t.Helper()
			for len(b) > 0 {
				if tagged {
					if number, _, n := protowire.ConsumeTag(b); n < 0 || number != 1 {
						t.Fatalf("field %d", number)
					} else {
						b = b[n:]
					}
				}
				v, n := protowire.ConsumeVarint(b)
				if n < 0 {
					t.Fatal(protowire.ParseError(n))
				}
				got, b = append(got, v), b[n:]
			}
			return got
		}
		if got := varints(bytes(2), true); !slices.Equal(got, numbers) {
			t.Errorf("from %d bytes: numbers %v", size, got)
		}
		packed := varints(bytes(3), false)
		if !slices.EqualFunc(packed, list, func(a uint64, b int32) bool { return a == uint64(b) }) {
			t.Errorf("from %d bytes: list %v", size, packed)
		}
		field(4, protowire.Fixed64Type)
		if v, n := protowire.ConsumeFixed64(b); v != math.MaxUint64-1 {
			t.Errorf("from %d bytes: %x", size, v)
		} else {
			b = b[n:]
		}
		if got := bytes(5); string(got) != long || len(b) != 0 {
			t.Errorf("from %d bytes: text %q, %d bytes more", size, got, len(b))
		}
	}
}

// An index finds what was put in, and nothing else, while it grows, and when all hashes are one.
func TestIndexFindsItsRows(t *testing.T) {
	for name, hash := range map[string]func(row int32) uint64{
		"spread": func(row int32) uint64 { return mix(7, uint64(row)) },
		"one":    func(int32) uint64 { return 42 },
	} {
		x := newIndex(0)
		for row := int32(1); row < 2000; row++ {
			if found := x.find(hash(row), func(r int32) bool { return r == row }); found != 0 {
				t.Fatalf("%s: row %d is there already", name, row)
			}
			x.add(hash(row), row)
		}
		for row := int32(1); row < 2000; row++ {
			if found := x.find(hash(row), func(r int32) bool { return r == row }); found != row {
				t.Fatalf("%s: row %d is %d", name, row, found)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package profiletest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// When is the time of every profile made here.
var When = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// Builder makes a profile sample by sample.
type Builder struct {
	*profile.Profile

	python *profile.Mapping
}

// New starts a profile with the given sample types, "inuse_space/bytes" and the like written as pairs.
func New(sampleTypes ...[2]string) *Builder {
	b := &Builder{Profile: &profile.Profile{
		PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 512 << 10,
		TimeNanos: When.UnixNano(), DurationNanos: int64(time.Minute),
	}}
	for _, st := range sampleTypes {
		b.SampleType = append(b.SampleType, &profile.ValueType{Type: st[0], Unit: st[1]})
	}
	b.DefaultSampleType = sampleTypes[len(sampleTypes)-1][0]
	return b
}

// Inuse and Alloc are the sample types of a heap profile.
var (
	Inuse = [][2]string{{"inuse_objects", "count"}, {"inuse_space", "bytes"}}
	Alloc = [][2]string{{"alloc_objects", "count"}, {"alloc_space", "bytes"}}
)

// Mapping adds a shared object.
func (b *Builder) Mapping(start, limit uint64, file, buildID string) *profile.Mapping {
	m := &profile.Mapping{ID: uint64(len(b.Profile.Mapping) + 1), Start: start, Limit: limit, File: file, BuildID: buildID}
	b.Profile.Mapping = append(b.Profile.Mapping, m)
	return m
}

// Func adds a function.
func (b *Builder) Func(name, system, file string, startLine int64) *profile.Function {
	f := &profile.Function{ID: uint64(len(b.Function) + 1), Name: name, SystemName: system, Filename: file, StartLine: startLine}
	b.Function = append(b.Function, f)
	return f
}

// Python adds a Python frame.
func (b *Builder) Python(f *profile.Function, line int64) *profile.Location {
	if b.python == nil {
		b.python = b.Mapping(0, 0, stack.PythonMapping, "")
		b.python.HasFunctions, b.python.HasFilenames, b.python.HasLineNumbers = true, true, true
	}
	return b.Native(b.python, 0, profile.Line{Function: f, Line: line})
}

// Native adds a native frame with its lines, innermost inlined function first; none leaves it unsymbolised.
func (b *Builder) Native(m *profile.Mapping, address uint64, lines ...profile.Line) *profile.Location {
	l := &profile.Location{ID: uint64(len(b.Location) + 1), Mapping: m, Address: address, Line: lines}
	b.Location = append(b.Location, l)
	return l
}

// Add adds a sample, leaf first.
func (b *Builder) Add(values []int64, leafFirst ...*profile.Location) *profile.Sample {
	s := &profile.Sample{Value: values, Location: leafFirst}
	b.Sample = append(b.Sample, s)
	return s
}

// Heap is a small profile with one of everything: Python frames over native ones, inlined functions, a frame without a
// name, two functions of one name in two files, text and number labels, stacks with nothing live and stacks that are
// equal. In bytes 537,396,202 are live.
func Heap() *profile.Profile {
	b := New(append(append([][2]string{}, Alloc...), Inuse...)...)
	torch := b.Mapping(0x7f0000000000, 0x7f0001000000, "/opt/torch/lib/libtorch_cpu.so", "600dcafe4a110000f2bf38c493f5fb92")
	ext := b.Mapping(0x7f0002000000, 0x7f0002100000, "/app/leak.cpython-311-x86_64-linux-gnu.so", "")

	alloc := b.Native(torch, 0x7f0000001234,
		profile.Line{Function: b.Func("c10::alloc_cpu(unsigned long)", "_ZN3c109alloc_cpuEm", "c10/core/impl/alloc_cpu.cpp", 0), Line: 91},
		profile.Line{Function: b.Func("at::empty_cpu()", "_ZN2at9empty_cpuEv", "aten/src/ATen/EmptyTensor.cpp", 0), Line: 200})
	unnamed := b.Native(ext, 0x7f0002000abc)
	attention := b.Func("forward", "forward", "/app/attention.py", 40)
	mlp := b.Func("forward", "forward", "/app/mlp.py", 12)
	main := b.Func("<module>", "<module>", "/app/train.py", 1)
	root := b.Python(main, 300)

	b.Add([]int64{2048, 1 << 30, 1024, 512 << 20}, alloc, b.Python(attention, 57), root)
	b.Add([]int64{30, 3000, 10, 1000}, unnamed, b.Python(mlp, 14), root)
	b.Add([]int64{7, 700, 0, 0}, unnamed, root) // freed again
	cuda := b.Add([]int64{4, 400, 1, 1 << 19}, alloc, root)
	cuda.Label = map[string][]string{"device": {"cuda:0"}}
	cuda.NumLabel = map[string][]int64{"bytes": {4096}}
	cuda.NumUnit = map[string][]string{"bytes": {"bytes"}}
	b.Add([]int64{1, 1, 1, 1}, b.Python(mlp, 14), root)
	b.Add([]int64{1, 1, 1, 1}, b.Python(mlp, 14), root) // the same stack, in locations of its own
	return b.Profile
}

// Shape is the size of a generated profile.
type Shape struct {
	Stacks, Depth, Functions int
	Types                    int // 2: inuse, 4: also alloc
	Seed                     uint64
}

// Generate makes a profile of random stacks: a third of each is native, the rest Python; stacks share their root ends, as
// those of a program do.
func Generate(s Shape) *profile.Profile {
	types := Inuse
	if s.Types == 4 {
		types = append(append([][2]string{}, Alloc...), Inuse...)
	}
	b := New(types...)
	rnd := rand.New(rand.NewPCG(s.Seed, 1))
	libs := make([]*profile.Mapping, 8)
	for i := range libs {
		start := 0x7f00_0000_0000 + uint64(i)<<24
		libs[i] = b.Mapping(start, start+1<<23, fmt.Sprintf("/usr/lib/python3/dist-packages/module%d.so", i), fmt.Sprintf("%040x", i+1))
	}
	functions := max(s.Functions, 2)
	python := make([]*profile.Location, 0, functions)
	native := make([]*profile.Location, 0, functions)
	for i := range functions {
		if i%3 == 0 {
			m := libs[i%len(libs)]
			name := fmt.Sprintf("module::Class%d::method(unsigned long, int)", i)
			f := b.Func(name, fmt.Sprintf("_ZN6module7Class%d6methodEmi", i), "", 0)
			native = append(native, b.Native(m, m.Start+uint64(i)*64, profile.Line{Function: f}))
			continue
		}
		f := b.Func(fmt.Sprintf("Class%d.method_%d", i%97, i), "", fmt.Sprintf("/usr/lib/python3/dist-packages/package/module_%d.py", i%211), int64(i%900))
		python = append(python, b.Python(f, int64(i%900+3)))
	}
	var previous []*profile.Location
	for i := range s.Stacks {
		depth := max(s.Depth, 1)
		leafFirst := make([]*profile.Location, depth)
		shared := 0
		if previous != nil {
			shared = rnd.IntN(depth)
		}
		copy(leafFirst[depth-shared:], tail(previous, shared))
		for j := range depth - shared {
			if j < depth/3 {
				leafFirst[j] = native[rnd.IntN(len(native))]
			} else {
				leafFirst[j] = python[rnd.IntN(len(python))]
			}
		}
		previous = leafFirst
		values := make([]int64, len(types))
		for k := range values {
			values[k] = int64(1+rnd.IntN(100)) << (k % 2 * 12)
		}
		if i%10 == 9 {
			values[len(values)-1], values[len(values)-2] = 0, 0 // nothing of it lives any more
		}
		b.Add(values, leafFirst...)
	}
	return b.Profile
}

func tail(s []*profile.Location, n int) []*profile.Location { return s[len(s)-n:] }

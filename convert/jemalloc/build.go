// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// finish turns what was read into the profile.
func (p *parser) finish() *Dump {
	accum := p.meta.ProfAccum || p.report.Estimate[allocObjects] > 0
	prof := &profile.Profile{
		DefaultSampleType: "inuse_space",
		PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
		Period:            p.report.SampleBytes,
		DurationNanos:     int64(p.meta.Interval),
	}
	if !p.meta.Time.IsZero() {
		prof.TimeNanos = p.meta.Time.UnixNano()
	}
	if accum {
		prof.SampleType = append(prof.SampleType,
			&profile.ValueType{Type: "alloc_objects", Unit: "count"},
			&profile.ValueType{Type: "alloc_space", Unit: "bytes"})
	}
	prof.SampleType = append(prof.SampleType,
		&profile.ValueType{Type: "inuse_objects", Unit: "count"},
		&profile.ValueType{Type: "inuse_space", Unit: "bytes"})

	p.sortMaps()
	giantStacks, giants := p.giantProfile()
	b := builder{parser: p, table: p.table, prof: prof}
	b.locate()
	b.merge()
	b.samples()
	p.judge()
	return &Dump{Profile: prof, Giants: giants, GiantStacks: giantStacks, Meta: p.meta, Mappings: p.named, Report: p.report}
}

// builder resolves addresses to locations, then stacks to samples.
type builder struct {
	*parser
	table *addressTable
	prof  *profile.Profile
	// locations by number of the address table. Numbers that mean the same location are made one by alias.
	locations []*profile.Location
	alias     []uint32

	mappings  map[int]*profile.Mapping
	python    *profile.Mapping
	functions map[string]*profile.Function // those that are no functions of the program, by name
	lines     map[pythonLine]uint32        // of functions with several ids
}

type pythonLine struct {
	function *profile.Function
	line     int64
}

// locate makes a location of every address, in the order in which the file has them.
func (b *builder) locate() {
	slices.SortStableFunc(b.objects, func(x, y object) int { return cmp.Compare(x.start, y.start) })
	b.mappings = map[int]*profile.Mapping{}
	b.functions = map[string]*profile.Function{}
	b.lines = map[pythonLine]uint32{}
	n := len(b.table.addresses)
	b.locations = make([]*profile.Location, n)
	b.alias = make([]uint32, n)
	arena := make([]profile.Location, n)
	for _, address := range b.table.addresses {
		if address>>48 == tokenTag {
			b.tokens++
		}
	}
	lines := make([]profile.Line, 0, b.tokens)
	used := 0
	for i, address := range b.table.addresses {
		b.alias[i] = uint32(i)
		l := &arena[used]
		switch {
		case address == noStack:
			l.Line = []profile.Line{{Function: b.special(stack.NoStack)}}
		case address>>48 == tokenTag:
			f, line, shared := b.pythonFrame(address)
			if shared {
				key := pythonLine{f, line}
				if same, ok := b.lines[key]; ok {
					b.alias[i] = same
					continue
				}
				b.lines[key] = uint32(i)
			}
			l.Mapping = b.pythonMapping()
			lines = append(lines, profile.Line{Function: f, Line: line})
			l.Line = lines[len(lines)-1 : len(lines) : len(lines)]
		default:
			l.Address = address - 1
			if m := b.find(l.Address); m >= 0 {
				l.Mapping = b.mapping(m)
			}
		}
		used++
		l.ID = uint64(used)
		b.locations[i] = l
	}
	b.prof.Location = make([]*profile.Location, used)
	for i := range b.prof.Location {
		b.prof.Location[i] = &arena[i]
	}
	// The first mapping is the main program (profile.proto), which the kernel loads below its libraries.
	slices.SortFunc(b.prof.Mapping, func(x, y *profile.Mapping) int { return cmp.Compare(x.Start, y.Start) })
	if b.python != nil {
		b.prof.Mapping = append(b.prof.Mapping, b.python)
	}
	for i, m := range b.prof.Mapping {
		m.ID = uint64(i + 1)
	}
}

// pythonFrame tells what a token stands for, and whether another token may stand for the same.
func (b *builder) pythonFrame(token uint64) (f *profile.Function, line int64, shared bool) {
	switch token {
	case tokenFramesLeftOut:
		return b.special(stack.FramesLeftOut), 0, false
	case tokenWalkStopped:
		return b.special(stack.WalkStopped), 0, false
	}
	line = int64(token & (1<<tokenLineBits - 1))
	id := uint32(token >> tokenLineBits & (1<<tokenIDBits - 1))
	if id == 0 {
		return b.special(nameUnknownPython), line, false
	}
	r := b.rows[id]
	if r == nil {
		return b.special(nameUnnamedPython + strconv.FormatUint(uint64(id), 10) + "]"), line, false
	}
	if r.function.ID == 0 {
		b.add(&r.function)
	}
	return &r.function, line, r.shared
}

// special is a function that is none of the program's.
func (b *builder) special(name string) *profile.Function {
	f := b.functions[name]
	if f == nil {
		f = b.add(&profile.Function{Name: name, SystemName: name})
		b.functions[name] = f
	}
	return f
}

func (b *builder) add(f *profile.Function) *profile.Function {
	f.ID = uint64(len(b.prof.Function) + 1)
	b.prof.Function = append(b.prof.Function, f)
	return f
}

func (b *builder) pythonMapping() *profile.Mapping {
	if b.python == nil {
		b.python = &profile.Mapping{
			File: stack.PythonMapping, HasFunctions: true, HasFilenames: true, HasLineNumbers: true,
		}
	}
	return b.python
}

func (b *builder) mapping(i int) *profile.Mapping {
	m := b.mappings[i]
	if m == nil {
		at := b.maps[i]
		m = &profile.Mapping{Start: at.start, Limit: at.end, Offset: at.offset, File: at.file, BuildID: b.buildID(at.start)}
		b.mappings[i] = m
		b.prof.Mapping = append(b.prof.Mapping, m)
	}
	return m
}

// buildID finds the loaded object that an address belongs to.
func (b *builder) buildID(address uint64) string {
	i, found := slices.BinarySearchFunc(b.objects, address, func(o object, a uint64) int { return cmp.Compare(o.start, a) })
	if !found {
		i--
	}
	if i < 0 || address >= b.objects[i].end {
		return ""
	}
	return b.objects[i].buildID
}

// merge adds up equal stacks, in place. Only now are addresses known to mean the same location.
func (b *builder) merge() {
	slots := make([]uint32, 1<<max(4, bitsFor(2*b.stacks.length)))
	mask := uint64(len(slots) - 1)
	kept := 0
next:
	for n := range b.stacks.length {
		s := b.stacks.at(n)
		frames := b.arena.get(s.frames)
		h := uint64(len(frames))
		for i, f := range frames {
			frames[i] = b.alias[f]
			h = hash(h ^ uint64(frames[i]))
		}
		for i := h >> 20 & mask; ; i = (i + 1) & mask {
			if slots[i] == 0 {
				b.move(n, kept)
				kept++
				slots[i] = uint32(kept)
				continue next
			}
			to := int(slots[i] - 1)
			if same := b.stacks.at(to); slices.Equal(b.arena.get(same.frames), frames) {
				same.value.add(s.value)
				for _, share := range b.shares[n] {
					b.shares[to] = addShare(b.shares[to], share)
				}
				continue next
			}
		}
	}
	b.stacks.length = kept
}

func (b *builder) move(from, to int) {
	if from == to {
		return
	}
	*b.stacks.at(to) = *b.stacks.at(from)
	if b.shares != nil {
		b.shares[to] = b.shares[from]
	}
}

func bitsFor(n int) int {
	bits := 0
	for 1<<bits < n {
		bits++
	}
	return bits
}

// samples makes the profile's samples, in blocks: a profile of 100,000 stacks is a handful of allocations.
func (b *builder) samples() {
	total := 0
	for n := range b.stacks.length {
		total += len(b.arena.get(b.stacks.at(n).frames))
	}
	width := len(b.prof.SampleType)
	first := len(values{}) - width
	arena := make([]profile.Sample, 0, b.stacks.length)
	locations := make([]*profile.Location, 0, total)
	numbers := make([]int64, 0, b.stacks.length*width)
	b.prof.Sample = make([]*profile.Sample, 0, b.stacks.length)

	for n := range b.stacks.length {
		s := b.stacks.at(n)
		start := len(locations)
		for _, f := range b.arena.get(s.frames) {
			locations = append(locations, b.locations[f])
		}
		at := locations[start:len(locations):len(locations)]
		if len(b.shares[n]) > 0 {
			b.byThread(s.value, b.shares[n], at, first)
			continue
		}
		start = len(numbers)
		for _, v := range s.value[first:] {
			numbers = append(numbers, int64(math.Round(v)))
		}
		v := numbers[start:len(numbers):len(numbers)]
		if !slices.ContainsFunc(v, func(x int64) bool { return x != 0 }) {
			continue
		}
		arena = append(arena, profile.Sample{Location: at, Value: v})
		b.prof.Sample = append(b.prof.Sample, &arena[len(arena)-1])
	}
	if len(b.prof.Sample) < b.stacks.length || b.report.CutStacks > 0 || b.report.GarbageLines > 0 {
		stack.Compact(b.prof) // there may be locations that only stacks without figures referred to
	}
	b.countNameless()
}

// countNameless counts what the profile's locations lack.
func (b *builder) countNameless() {
	for _, l := range b.prof.Location {
		switch {
		case l.Mapping == nil && len(l.Line) == 0:
			b.report.UnmappedFrames++
			b.beyond = b.beyond || b.beyondMappings(l.Address)
		case l.Mapping == b.python && b.python != nil && strings.HasPrefix(l.Line[0].Function.Name, nameUnnamedPython):
			b.report.NamelessTokens++
		}
	}
}

// byThread makes one sample for each thread name that the stack has.
func (b *builder) byThread(value values, shares []threadShare, at []*profile.Location, first int) {
	for i, v := range split(value, shares) {
		if !slices.ContainsFunc(v[first:], func(x int64) bool { return x != 0 }) {
			continue
		}
		sample := &profile.Sample{Location: at, Value: slices.Clone(v[first:])}
		if shares[i].name != "" {
			sample.Label = map[string][]string{"thread_name": {shares[i].name}}
		}
		b.prof.Sample = append(b.prof.Sample, sample)
	}
}

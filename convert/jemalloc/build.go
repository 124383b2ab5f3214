package jemalloc

import (
	"math"
	"slices"
	"strconv"

	"github.com/google/pprof/profile"

	frames "github.com/heapwire/heapwire/convert/stack"
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
	b := builder{parser: p, prof: prof, accum: accum}
	b.locate()
	b.merge()
	b.samples()
	p.judge()
	return &Dump{Profile: prof, Meta: p.meta, Report: p.report}
}

// builder resolves addresses to locations, then stacks to samples.
type builder struct {
	*parser
	prof  *profile.Profile
	accum bool
	// locations by number of the address table. Numbers that mean the same location are made one by alias.
	locations []*profile.Location
	alias     []uint32

	mappings  map[int]*profile.Mapping
	python    *profile.Mapping
	functions map[row]*profile.Function
	lines     map[pythonLine]uint32
}

type pythonLine struct {
	function *profile.Function
	line     int64
}

// locate makes a location of every address, in the order in which the file has them.
func (b *builder) locate() {
	slices.SortStableFunc(b.objects, func(x, y object) int {
		switch {
		case x.start < y.start:
			return -1
		case x.start > y.start:
			return 1
		}
		return 0
	})
	b.mappings = map[int]*profile.Mapping{}
	b.functions = map[row]*profile.Function{}
	b.lines = map[pythonLine]uint32{}
	n := len(b.table.addresses)
	b.locations = make([]*profile.Location, n)
	b.alias = make([]uint32, n)
	arena := make([]profile.Location, n)
	used := 0
	for i, address := range b.table.addresses {
		b.alias[i] = uint32(i)
		l := &arena[used]
		switch {
		case address == noStack:
			l.Line = []profile.Line{{Function: b.function(row{name: nameNoStack})}}
		case address>>48 == tokenTag:
			f, line := b.pythonFrame(address)
			key := pythonLine{f, line}
			if same, ok := b.lines[key]; ok {
				b.alias[i] = same
				continue
			}
			b.lines[key] = uint32(i)
			l.Mapping = b.pythonMapping()
			l.Line = []profile.Line{{Function: f, Line: line}}
		default:
			l.Address = address - 1
			if m := b.find(l.Address); m >= 0 {
				l.Mapping = b.mapping(m)
			} else {
				b.report.UnmappedFrames++
			}
		}
		used++
		l.ID = uint64(used)
		b.locations[i] = l
	}
	for i := range arena[:used] {
		b.prof.Location = append(b.prof.Location, &arena[i])
	}
	if b.python != nil {
		b.prof.Mapping = append(b.prof.Mapping, b.python)
	}
	for i, m := range b.prof.Mapping {
		m.ID = uint64(i + 1)
	}
}

// pythonFrame tells what a token stands for.
func (b *builder) pythonFrame(token uint64) (*profile.Function, int64) {
	switch token {
	case tokenFramesLeftOut:
		return b.function(row{name: nameFramesLeftOut}), 0
	case tokenWalkStopped:
		return b.function(row{name: nameWalkStopped}), 0
	}
	line := int64(token & (1<<tokenLineBits - 1))
	id := uint32(token >> tokenLineBits & (1<<tokenIDBits - 1))
	if id == 0 {
		return b.function(row{name: nameUnknownPython}), line
	}
	r, ok := b.rows[id]
	if !ok {
		b.report.NamelessTokens++
		r = row{name: "[unnamed python function " + strconv.FormatUint(uint64(id), 10) + "]"}
	}
	return b.function(r), line
}

func (b *builder) function(r row) *profile.Function {
	f := b.functions[r]
	if f == nil {
		f = &profile.Function{
			ID: uint64(len(b.prof.Function) + 1), Name: r.name, SystemName: r.name, Filename: r.file, StartLine: r.line,
		}
		b.functions[r] = f
		b.prof.Function = append(b.prof.Function, f)
	}
	return f
}

func (b *builder) pythonMapping() *profile.Mapping {
	if b.python == nil {
		b.python = &profile.Mapping{
			File: frames.PythonMapping, HasFunctions: true, HasFilenames: true, HasLineNumbers: true,
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
	i, found := slices.BinarySearchFunc(b.objects, address, func(o object, a uint64) int {
		switch {
		case o.start < a:
			return -1
		case o.start > a:
			return 1
		}
		return 0
	})
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
	for _, s := range b.stacks {
		for i, f := range s.frames {
			s.frames[i] = b.alias[f]
		}
	}
	slots := make([]uint32, 1<<max(4, bitsFor(2*len(b.stacks))))
	mask := uint64(len(slots) - 1)
	kept := b.stacks[:0]
next:
	for _, s := range b.stacks {
		h := uint64(len(s.frames))
		for _, f := range s.frames {
			h = hash(h ^ uint64(f))
		}
		for i := h >> 20 & mask; ; i = (i + 1) & mask {
			if slots[i] == 0 {
				kept = append(kept, s)
				slots[i] = uint32(len(kept))
				continue next
			}
			if same := &kept[slots[i]-1]; slices.Equal(same.frames, s.frames) {
				same.value.add(s.value)
				same.shares = append(same.shares, s.shares...)
				continue next
			}
		}
	}
	b.stacks = kept
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
	for _, s := range b.stacks {
		total += len(s.frames)
	}
	width := len(b.prof.SampleType)
	first := len(values{}) - width
	arena := make([]profile.Sample, 0, len(b.stacks))
	locations := make([]*profile.Location, 0, total)
	numbers := make([]int64, 0, len(b.stacks)*width)
	b.prof.Sample = make([]*profile.Sample, 0, len(b.stacks))

	for _, s := range b.stacks {
		start := len(locations)
		for _, f := range s.frames {
			locations = append(locations, b.locations[f])
		}
		at := locations[start:len(locations):len(locations)]
		if len(s.shares) > 0 {
			b.byThread(s, at, first)
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
	if len(b.prof.Sample) < len(b.stacks) || b.report.CutStacks > 0 || b.report.GarbageLines > 0 {
		frames.Compact(b.prof) // there may be locations that only stacks without figures referred to
	}
}

// byThread makes one sample for each thread name that the stack has.
func (b *builder) byThread(s stack, at []*profile.Location, first int) {
	merged := make([]threadShare, 0, len(s.shares))
next:
	for _, share := range s.shares {
		for i := range merged {
			if merged[i].name == share.name {
				merged[i].value.add(share.value)
				continue next
			}
		}
		merged = append(merged, share)
	}
	for i, v := range split(s.value, merged) {
		if !slices.ContainsFunc(v[first:], func(x int64) bool { return x != 0 }) {
			continue
		}
		sample := &profile.Sample{Location: at, Value: slices.Clone(v[first:])}
		if merged[i].name != "" {
			sample.Label = map[string][]string{"thread_name": {merged[i].name}}
		}
		b.prof.Sample = append(b.prof.Sample, sample)
	}
}

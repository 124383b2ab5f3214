// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter/sink"
)

// maxFrames is where the server cuts a stack, at the leaf, which is the end that matters.
const maxFrames = 1000

// shape makes the profile that the server is to get: nil if nothing of it is to be sent. drop are label names that the
// series has already. The alloc_* columns are those of diff, and left out where it has none.
func shape(it *sink.Item, drop func(labelName string) bool, diff difference) (*profile.Profile, error) {
	src := it.Profile
	var columns []int
	for i, st := range src.SampleType {
		if strings.HasPrefix(st.Type, allocPrefix) && it.View != "alloc" && !slices.Contains(diff.columns, i) {
			continue
		}
		columns = append(columns, i)
	}
	out := &profile.Profile{
		PeriodType:    periodType(src),
		Period:        max(src.Period, 1),
		TimeNanos:     src.TimeNanos,
		DurationNanos: src.DurationNanos,
	}
	if !it.Time.IsZero() {
		out.TimeNanos = it.Time.UnixNano()
	}
	if it.Duration > 0 {
		out.DurationNanos = int64(it.Duration)
	}
	for _, c := range columns {
		st := src.SampleType[c]
		out.SampleType = append(out.SampleType, &profile.ValueType{Type: st.Type, Unit: st.Unit})
	}
	b := &shaper{
		names:     distinctNames(src),
		mappings:  map[*profile.Mapping]*profile.Mapping{},
		functions: map[string]*profile.Function{},
		locations: map[*profile.Location]*profile.Location{},
	}
	for n, s := range src.Sample {
		values := make([]int64, len(columns))
		zero := true
		for i, c := range columns {
			values[i] = s.Value[c]
			if at := slices.Index(diff.columns, c); at >= 0 {
				values[i] = 0
				if diff.rows[n] != nil {
					values[i] = diff.rows[n][at]
				}
			}
			zero = zero && values[i] == 0
			if values[i] < 0 {
				return nil, errors.New("the profile has negative values: the server drops such samples, a difference cannot be pushed")
			}
		}
		if zero {
			continue
		}
		row := &profile.Sample{Value: values, Location: b.stack(s.Location)}
		for k, v := range s.Label {
			// Text labels of samples become labels of the series; numbers are dropped by the server.
			if name := labelName(k); name != "" && !drop(name) && len(v) > 0 {
				if row.Label == nil {
					row.Label = map[string][]string{}
				}
				row.Label[name] = []string{labelValue(v[0])}
			}
		}
		out.Sample = append(out.Sample, row)
	}
	if len(out.Sample) == 0 {
		return nil, nil
	}
	out = number(out)
	if err := out.CheckValid(); err != nil {
		return nil, fmt.Errorf("shaping the profile for Pyroscope: %w", err)
	}
	return out.Compact(), nil
}

// periodType is the second half of a profile type's id. Grafana knows memory:inuse_space:bytes:space:bytes.
func periodType(p *profile.Profile) *profile.ValueType {
	memory := slices.ContainsFunc(p.SampleType, func(t *profile.ValueType) bool {
		return strings.HasPrefix(t.Type, allocPrefix) || strings.HasPrefix(t.Type, "inuse_")
	})
	switch {
	case memory:
		return &profile.ValueType{Type: "space", Unit: "bytes"}
	case p.PeriodType != nil && p.PeriodType.Type != "" || len(p.SampleType) == 0:
		return p.PeriodType
	}
	return &profile.ValueType{Type: p.SampleType[0].Type, Unit: p.SampleType[0].Unit}
}

// shaper rewrites what samples refer to, so that equal frames of different processes are equal, and every frame has a
// name: frames without one vanish from the server's flame graphs together with their bytes (pyroscope#4383).
type shaper struct {
	names     map[*profile.Function]string
	mappings  map[*profile.Mapping]*profile.Mapping
	functions map[string]*profile.Function
	locations map[*profile.Location]*profile.Location
}

func (b *shaper) stack(src []*profile.Location) []*profile.Location {
	if len(src) > maxFrames {
		const leaf = maxFrames / 2
		cut := make([]*profile.Location, 0, maxFrames)
		for _, l := range src[:leaf] {
			cut = append(cut, b.location(l))
		}
		cut = append(cut, b.leftOut(src[leaf].Mapping))
		for _, l := range src[len(src)-(maxFrames-leaf-1):] {
			cut = append(cut, b.location(l))
		}
		return cut
	}
	out := make([]*profile.Location, len(src))
	for i, l := range src {
		out[i] = b.location(l)
	}
	return out
}

// leftOut stands for frames in the middle of a stack that is too deep.
func (b *shaper) leftOut(m *profile.Mapping) *profile.Location {
	return &profile.Location{Mapping: b.mapping(m), Line: []profile.Line{{Function: b.function("[frames left out]", "", "", 0)}}}
}

func (b *shaper) location(src *profile.Location) *profile.Location {
	if l, ok := b.locations[src]; ok {
		return l
	}
	l := &profile.Location{Mapping: b.mapping(src.Mapping)}
	for _, ln := range src.Line {
		f := ln.Function
		if f == nil || f.Name == "" {
			l.Line = append(l.Line, profile.Line{Function: b.function(stack.Address(src), "", "", 0), Line: ln.Line})
			continue
		}
		l.Line = append(l.Line, profile.Line{Function: b.function(b.names[f], f.SystemName, f.Filename, f.StartLine), Line: ln.Line})
	}
	if len(l.Line) == 0 {
		l.Line = []profile.Line{{Function: b.function(stack.Address(src), "", "", 0)}}
	}
	b.locations[src] = l
	return l
}

func (b *shaper) function(name, system, file string, startLine int64) *profile.Function {
	key := fmt.Sprintf("%s\x00%s\x00%s\x00%d", name, system, file, startLine)
	f, ok := b.functions[key]
	if !ok {
		f = &profile.Function{Name: name, SystemName: system, Filename: file, StartLine: startLine}
		b.functions[key] = f
	}
	return f
}

// mapping moves a mapping to address 0. All frames have names, so all mappings say so, and the server then wipes
// addresses; that wiping is why Python frames must not share a mapping with native ones, and they do not.
func (b *shaper) mapping(src *profile.Mapping) *profile.Mapping {
	if src == nil {
		return nil
	}
	m, ok := b.mappings[src]
	if !ok {
		m = &profile.Mapping{File: src.File, BuildID: src.BuildID, HasFunctions: true, HasFilenames: src.HasFilenames, HasLineNumbers: src.HasLineNumbers}
		if src.Limit > src.Start {
			m.Limit = src.Limit - src.Start
			m.Offset = src.Offset
		}
		b.mappings[src] = m
	}
	return m
}

// number makes p's tables, and the ids in them, of what its samples refer to.
func number(p *profile.Profile) *profile.Profile {
	mappings := map[*profile.Mapping]bool{}
	functions := map[*profile.Function]bool{}
	locations := map[*profile.Location]bool{}
	p.Mapping, p.Location, p.Function = nil, nil, nil
	for _, s := range p.Sample {
		for _, l := range s.Location {
			if locations[l] {
				continue
			}
			locations[l] = true
			l.ID = uint64(len(p.Location) + 1)
			p.Location = append(p.Location, l)
			if l.Mapping != nil && !mappings[l.Mapping] {
				mappings[l.Mapping] = true
				l.Mapping.ID = uint64(len(p.Mapping) + 1)
				p.Mapping = append(p.Mapping, l.Mapping)
			}
			for _, ln := range l.Line {
				if !functions[ln.Function] {
					functions[ln.Function] = true
					ln.Function.ID = uint64(len(p.Function) + 1)
					p.Function = append(p.Function, ln.Function)
				}
			}
		}
	}
	return p
}

// distinctNames gives each function a name that tells it apart: the server's flame graphs know nodes by name only, so
// that two forward() of two files would be one. Python functions get their file's name, and as much of its path as two
// files of that name with the same function need. Native names are qualified already.
func distinctNames(p *profile.Profile) map[*profile.Function]string {
	python := map[*profile.Function]bool{}
	for _, l := range p.Location {
		if stack.IsPython(l) {
			for _, ln := range l.Line {
				python[ln.Function] = true
			}
		}
	}
	names := make(map[*profile.Function]string, len(p.Function))
	byName := map[string][]*profile.Function{}
	for _, f := range p.Function {
		if !python[f] || f.Filename == "" {
			names[f] = f.Name
			continue
		}
		name := f.Name + " (" + shortFile(f.Filename, 1) + ")"
		byName[name] = append(byName[name], f)
	}
	for name, fs := range byName {
		depth := 1
		for files := distinct(fs, depth); files < distinct(fs, 1<<10) && depth < 1<<10; files = distinct(fs, depth) {
			depth++
		}
		for _, f := range fs {
			names[f] = name
			if depth > 1 {
				names[f] = f.Name + " (" + shortFile(f.Filename, depth) + ")"
			}
		}
	}
	return names
}

// distinct counts the files of functions when only the last elements of their paths are looked at.
func distinct(fs []*profile.Function, elements int) int {
	seen := map[string]bool{}
	for _, f := range fs {
		seen[shortFile(f.Filename, elements)] = true
	}
	return len(seen)
}

// shortFile gives the last elements of a path. Every package has an __init__.py, so that name brings its folder.
func shortFile(file string, elements int) string {
	file = path.Clean(file)
	if base := path.Base(file); base == "__init__.py" || base == "__main__.py" {
		elements++
	}
	at := len(file)
	for range elements {
		i := strings.LastIndexByte(file[:at], '/')
		if i < 0 {
			return file
		}
		at = i
	}
	return file[at+1:]
}

// part is a profile that the server takes whole.
type part struct {
	gzipped []byte
	size    int // before compression
	samples int
}

// split cuts p by the order of its samples into parts within the limits; their sum is p.
func split(p *profile.Profile, maxBytes, maxSamples int) ([]part, error) {
	n := len(p.Sample)
	if n > maxSamples {
		return splitAt(p, maxSamples, maxBytes, maxSamples)
	}
	var raw bytes.Buffer
	if err := p.WriteUncompressed(&raw); err != nil {
		return nil, fmt.Errorf("encoding the profile: %w", err)
	}
	if raw.Len() > maxBytes {
		if n == 1 {
			return nil, fmt.Errorf("one stack alone takes %d bytes, the server's limit is %d", raw.Len(), maxBytes)
		}
		// Halves would double the requests of a profile slightly above the limit; samples cost about the same each.
		pieces := raw.Len()/maxBytes + 1
		return splitAt(p, max(n/pieces, 1), maxBytes, maxSamples)
	}
	gz, err := compress(raw.Bytes())
	if err != nil {
		return nil, err
	}
	return []part{{gz, raw.Len(), n}}, nil
}

func splitAt(p *profile.Profile, samples, maxBytes, maxSamples int) ([]part, error) {
	var parts []part
	for from := 0; from < len(p.Sample); from += samples {
		piece := &profile.Profile{
			SampleType: p.SampleType, PeriodType: p.PeriodType, Period: p.Period,
			TimeNanos: p.TimeNanos, DurationNanos: p.DurationNanos,
			Sample: p.Sample[from:min(from+samples, len(p.Sample))],
		}
		// The parts share locations and number them anew: each is encoded before the next is made.
		more, err := split(number(piece), maxBytes, maxSamples)
		if err != nil {
			return nil, err
		}
		parts = append(parts, more...)
	}
	return parts, nil
}

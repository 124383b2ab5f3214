// SPDX-License-Identifier: Apache-2.0

package file

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/pprof/profile"
)

// private makes a copy that shares nothing but texts and labels with p. Profile's own Copy and Write write into the profile
// that they encode (preEncode in profile/encode.go), which other sinks read at the same time.
func private(p *profile.Profile) (*profile.Profile, error) {
	if err := p.CheckValid(); err != nil {
		return nil, err
	}
	out := &profile.Profile{
		DefaultSampleType: p.DefaultSampleType, Comments: slices.Clone(p.Comments), DocURL: p.DocURL,
		DropFrames: p.DropFrames, KeepFrames: p.KeepFrames,
		TimeNanos: p.TimeNanos, DurationNanos: p.DurationNanos, PeriodType: valueType(p.PeriodType), Period: p.Period,
		SampleType: make([]*profile.ValueType, len(p.SampleType)),
		Mapping:    make([]*profile.Mapping, len(p.Mapping)),
		Function:   make([]*profile.Function, len(p.Function)),
		Location:   make([]*profile.Location, len(p.Location)),
		Sample:     make([]*profile.Sample, len(p.Sample)),
	}
	for i, st := range p.SampleType {
		out.SampleType[i] = valueType(st)
	}
	mappings := make(map[*profile.Mapping]*profile.Mapping, len(p.Mapping))
	for i, m := range p.Mapping {
		out.Mapping[i] = &profile.Mapping{
			ID: m.ID, Start: m.Start, Limit: m.Limit, Offset: m.Offset, File: m.File, BuildID: m.BuildID,
			HasFunctions: m.HasFunctions, HasFilenames: m.HasFilenames, HasLineNumbers: m.HasLineNumbers,
			HasInlineFrames: m.HasInlineFrames, KernelRelocationSymbol: m.KernelRelocationSymbol,
		}
		mappings[m] = out.Mapping[i]
	}
	functions := make(map[*profile.Function]*profile.Function, len(p.Function))
	for i, f := range p.Function {
		out.Function[i] = &profile.Function{ID: f.ID, Name: f.Name, SystemName: f.SystemName, Filename: f.Filename, StartLine: f.StartLine}
		functions[f] = out.Function[i]
	}
	locations := make(map[*profile.Location]*profile.Location, len(p.Location))
	for i, l := range p.Location {
		own := &profile.Location{ID: l.ID, Mapping: mappings[l.Mapping], Address: l.Address, IsFolded: l.IsFolded, Line: make([]profile.Line, len(l.Line))}
		for j := range l.Line {
			from, to := &l.Line[j], &own.Line[j]
			to.Function, to.Line, to.Column = functions[from.Function], from.Line, from.Column
		}
		out.Location[i] = own
		locations[l] = own
	}
	for i, s := range p.Sample {
		own := &profile.Sample{
			Value: slices.Clone(s.Value), Label: maps.Clone(s.Label), NumLabel: maps.Clone(s.NumLabel), NumUnit: maps.Clone(s.NumUnit),
			Location: make([]*profile.Location, len(s.Location)),
		}
		for j, l := range s.Location {
			if own.Location[j] = locations[l]; own.Location[j] == nil {
				return nil, fmt.Errorf("sample %d refers to a location that is not the profile's", i)
			}
		}
		out.Sample[i] = own
	}
	return out, nil
}

func valueType(st *profile.ValueType) *profile.ValueType {
	if st == nil {
		return nil
	}
	return &profile.ValueType{Type: st.Type, Unit: st.Unit}
}

// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Build makes one Profile per sample type of p on one dictionary. Values are p's own, in its units; samples that are 0
// in a sample type are absent from that Profile, and a Profile without samples is absent altogether, because receivers
// drop it. So the result has no Profile at all if p has no value but 0; see [Empty].
func Build(p *profile.Profile, opts Options) (pprofile.Profiles, error) {
	r, err := newRequest(p, opts)
	if err != nil {
		return pprofile.Profiles{}, err
	}
	pd := pprofile.NewProfiles()
	r.fill(pd.Dictionary())
	rp := pd.ResourceProfiles().AppendEmpty()
	rp.SetSchemaUrl(semconv.SchemaURL)
	r.resource.MoveTo(rp.Resource().Attributes())
	sp := rp.ScopeProfiles().AppendEmpty()
	sp.SetSchemaUrl(semconv.SchemaURL)
	sp.Scope().SetName(ScopeName)
	sp.Scope().SetVersion(r.scopeVersion)
	sp.Profiles().EnsureCapacity(len(r.profiles))
	for i := range r.profiles {
		r.put(sp.Profiles().AppendEmpty(), &r.profiles[i])
	}
	return pd, nil
}

// Empty says whether pd has no sample: otlpreceiver answers 200 to such a request and drops it.
func Empty(pd pprofile.Profiles) bool { return pd.SampleCount() == 0 }

// MarshalJSON gives the OTLP/JSON form of an export request. pd stays as it is: pprofile's marshallers turn the attributes of
// mutable data into references, after which Resource().Attributes().Get finds nothing.
func MarshalJSON(pd pprofile.Profiles) ([]byte, error) {
	c := pprofile.NewProfiles()
	pd.CopyTo(c)
	b, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(c)
	if err != nil {
		return nil, fmt.Errorf("encoding OTLP profiles as JSON: %w", err)
	}
	return b, nil
}

func (r *request) put(out pprofile.Profile, h *header) {
	out.SampleType().SetTypeStrindex(h.sampleType)
	out.SampleType().SetUnitStrindex(h.sampleUnit)
	out.PeriodType().SetTypeStrindex(h.periodType)
	out.PeriodType().SetUnitStrindex(h.periodUnit)
	out.SetPeriod(h.period)
	out.SetTime(h.time)
	out.SetDurationNano(h.duration)
	out.SetProfileID(h.id)
	out.AttributeIndices().Append(r.common...)
	out.Samples().EnsureCapacity(h.samples)
	for i := range r.samples {
		v := r.values[i*r.width+h.column]
		if v == 0 {
			continue
		}
		row := out.Samples().AppendEmpty()
		row.SetStackIndex(r.samples[i].stack)
		row.AttributeIndices().Append(r.samples[i].attrs...)
		row.Values().Append(v)
	}
}

// fill writes the tables. pprofile's own functions that intern a row search its table from the front, which takes half a second at
// 4000 stacks.
func (t *tables) fill(out pprofile.ProfilesDictionary) {
	out.StringTable().FromRaw(t.strings)
	out.LinkTable().AppendEmpty()
	out.MappingTable().EnsureCapacity(len(t.mappings))
	for _, m := range t.mappings {
		row := out.MappingTable().AppendEmpty()
		row.SetMemoryStart(m.start)
		row.SetMemoryLimit(m.limit)
		row.SetFileOffset(m.offset)
		row.SetFilenameStrindex(m.file)
		if m.buildID != 0 {
			row.AttributeIndices().Append(m.buildID)
		}
	}
	out.LocationTable().EnsureCapacity(len(t.locations))
	for i := range t.locations {
		l, row := &t.locations[i], out.LocationTable().AppendEmpty()
		row.SetMappingIndex(l.mapping)
		row.SetAddress(l.address)
		if l.frameType != 0 {
			row.AttributeIndices().Append(l.frameType)
		}
		lines := t.linesOf(l)
		row.Lines().EnsureCapacity(len(lines))
		for _, ln := range lines {
			r := row.Lines().AppendEmpty()
			r.SetFunctionIndex(ln.function)
			r.SetLine(ln.line)
			r.SetColumn(ln.column)
		}
	}
	out.FunctionTable().EnsureCapacity(len(t.functions))
	for _, f := range t.functions {
		row := out.FunctionTable().AppendEmpty()
		row.SetNameStrindex(f.name)
		row.SetSystemNameStrindex(f.system)
		row.SetFilenameStrindex(f.file)
		row.SetStartLine(f.startLine)
	}
	out.AttributeTable().EnsureCapacity(len(t.attributes))
	for i, a := range t.attributes {
		row := out.AttributeTable().AppendEmpty()
		row.SetKeyStrindex(a.key)
		row.SetUnitStrindex(a.unit)
		if i > 0 {
			a.value(row.Value())
		}
	}
	out.StackTable().EnsureCapacity(len(t.stacks))
	for i := range t.stacks {
		out.StackTable().AppendEmpty().LocationIndices().Append(t.framesOf(int32(i))...)
	}
}

func (a attribute) value(v pcommon.Value) {
	switch {
	case len(a.texts) == 1 && len(a.numbers) == 0:
		v.SetStr(a.texts[0])
	case len(a.texts) == 0 && len(a.numbers) == 1:
		v.SetInt(a.numbers[0])
	default:
		values := v.SetEmptySlice()
		for _, s := range a.texts {
			values.AppendEmpty().SetStr(s)
		}
		for _, n := range a.numbers {
			values.AppendEmpty().SetInt(n)
		}
	}
}

// putSorted writes raw into m in the order of its keys, at every depth: a Go map's own order would make every request differ.
func putSorted(m pcommon.Map, raw map[string]any) error {
	m.EnsureCapacity(len(raw))
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		if err := putValue(m.PutEmpty(k), raw[k]); err != nil {
			return err
		}
	}
	return nil
}

func putValue(v pcommon.Value, raw any) error {
	switch raw := raw.(type) {
	case map[string]any:
		return putSorted(v.SetEmptyMap(), raw)
	case []any:
		list := v.SetEmptySlice()
		list.EnsureCapacity(len(raw))
		for _, e := range raw {
			if err := putValue(list.AppendEmpty(), e); err != nil {
				return err
			}
		}
		return nil
	}
	return v.FromRaw(raw)
}

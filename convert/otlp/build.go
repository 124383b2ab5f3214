// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/heapwire/heapwire/convert/stack"
)

// ScopeName is the instrumentation scope of every profile.
const ScopeName = "github.com/heapwire/heapwire"

// Attribute keys of the semantic conventions for profiles; development, so not all releases of semconv have them.
const (
	keyFrameType  = "profile.frame.type"
	keyGNUBuildID = "process.executable.build_id.gnu"
	keyComment    = "pprof.profile.comment"

	frameTypePython = "cpython"
	frameTypeNative = "native"
)

// Options is what a pprof profile does not say about itself.
type Options struct {
	// Resource are the attributes of the process the profile is from: string, bool, int, int64, float64 or []any.
	Resource map[string]any

	// ScopeVersion is heapwire's version.
	ScopeVersion string

	// Attributes hold for every sample of the profile, such as memory_kind=host or reason=interval. A label of a sample
	// that says the same is left out.
	Attributes map[string]string

	// ProfileID identifies the dump; the profile of its first sample type carries it as it is, the others carry ids
	// derived from it, as an id must be unique. Zero: no ids.
	ProfileID [16]byte

	// Time is when the dump was taken, Duration the time since the one before. Zero: the profile's own.
	Time     time.Time
	Duration time.Duration
}

// sampleTypeOrder has the sample type first that a viewer which shows only the first profile should show.
var sampleTypeOrder = []string{"inuse_space", "inuse_objects", "alloc_space", "alloc_objects"}

// Build makes one Profile per sample type of p on one dictionary. Values are p's own, in its units; samples that are 0
// in a sample type are absent from that Profile, and a Profile without samples is absent altogether, because receivers
// drop it. So the result has no Profile at all if p has no value but 0; see [Empty].
func Build(p *profile.Profile, opts Options) (pprofile.Profiles, error) {
	if err := p.CheckValid(); err != nil {
		return pprofile.Profiles{}, fmt.Errorf("building OTLP profiles: %w", err)
	}
	if len(p.SampleType) == 0 {
		return pprofile.Profiles{}, errors.New("building OTLP profiles: the profile has no sample type")
	}
	pd := pprofile.NewProfiles()
	rp := pd.ResourceProfiles().AppendEmpty()
	rp.SetSchemaUrl(semconv.SchemaURL)
	if err := putSorted(rp.Resource().Attributes(), opts.Resource); err != nil {
		return pprofile.Profiles{}, fmt.Errorf("building OTLP profiles: resource attributes: %w", err)
	}
	sp := rp.ScopeProfiles().AppendEmpty()
	sp.SetSchemaUrl(semconv.SchemaURL)
	sp.Scope().SetName(ScopeName)
	sp.Scope().SetVersion(opts.ScopeVersion)

	b := &builder{
		dict:      newDict(pd.Dictionary(), p),
		functions: newRows(len(p.Function)),
		mappings:  newRows(len(p.Mapping)),
		locations: newRows(len(p.Location)),
	}
	profileAttrs := b.profileAttributes(p, opts.Attributes)
	samples := b.samples(p, opts.Attributes)

	for _, column := range columns(p.SampleType) {
		n := 0
		for i := range samples {
			if samples[i].values[column] != 0 {
				n++
			}
		}
		if n == 0 {
			continue
		}
		out := sp.Profiles().AppendEmpty()
		b.header(out, p, column, opts)
		out.AttributeIndices().Append(profileAttrs...)
		out.Samples().EnsureCapacity(n)
		for i := range samples {
			s := &samples[i]
			if s.values[column] == 0 {
				continue
			}
			row := out.Samples().AppendEmpty()
			row.SetStackIndex(s.stack)
			row.AttributeIndices().Append(s.attrs...)
			row.Values().Append(s.values[column])
		}
	}
	return pd, nil
}

// Empty says whether pd has no sample: otlpreceiver answers 200 to such a request and drops it.
func Empty(pd pprofile.Profiles) bool { return pd.SampleCount() == 0 }

// columns gives the indices of the sample types in the order in which they are written.
func columns(types []*profile.ValueType) []int {
	rank := func(i int) int {
		if r := slices.Index(sampleTypeOrder, types[i].Type); r >= 0 {
			return r
		}
		return len(sampleTypeOrder)
	}
	order := make([]int, len(types))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return rank(a) - rank(b) })
	return order
}

type builder struct {
	*dict
	functions, mappings, locations rows // by the ids that p gives them
	lines                          []line
}

// rows remembers the dictionary row of each pprof id. Ids usually count from 1, and then a slice does; a map costs most
// of the time that Build takes.
type rows struct {
	dense  []int32
	sparse map[uint64]int32
}

func newRows(n int) rows { return rows{make([]int32, 2*n+1), map[uint64]int32{}} }

// get gives the row of an id, 0 if there is none yet.
func (r rows) get(id uint64) int32 {
	if id < uint64(len(r.dense)) {
		return r.dense[id]
	}
	return r.sparse[id]
}

func (r rows) set(id uint64, row int32) {
	if id < uint64(len(r.dense)) {
		r.dense[id] = row
	} else {
		r.sparse[id] = row
	}
}

func (b *builder) header(out pprofile.Profile, p *profile.Profile, column int, opts Options) {
	st := p.SampleType[column]
	out.SampleType().SetTypeStrindex(b.str(st.Type))
	out.SampleType().SetUnitStrindex(b.str(st.Unit))

	// Pyroscope refuses a profile without a period, and names the series after the period type (newProfileBuilder in its
	// pkg/ingester/otlp/convert.go).
	periodType, periodUnit, period := "space", "bytes", p.Period
	if p.PeriodType != nil && p.PeriodType.Type != "" {
		periodType, periodUnit = p.PeriodType.Type, p.PeriodType.Unit
	}
	if period <= 0 {
		period = 1 // every byte was seen
	}
	out.PeriodType().SetTypeStrindex(b.str(periodType))
	out.PeriodType().SetUnitStrindex(b.str(periodUnit))
	out.SetPeriod(period)

	when, duration := opts.Time, opts.Duration
	if when.IsZero() && p.TimeNanos != 0 {
		when = time.Unix(0, p.TimeNanos)
	}
	if duration == 0 {
		duration = time.Duration(p.DurationNanos)
	}
	// The proto proposes the process's start as the time of heap data; back ends file a profile under this time, so it
	// has to be the dump's.
	if !when.IsZero() {
		out.SetTime(pcommon.NewTimestampFromTime(when))
	}
	if duration > 0 {
		out.SetDurationNano(uint64(duration))
	}
	out.SetProfileID(profileID(opts.ProfileID, st.Type))
}

func profileID(dump [16]byte, sampleType string) pprofile.ProfileID {
	if dump == ([16]byte{}) || sampleType == sampleTypeOrder[0] {
		return pprofile.ProfileID(dump)
	}
	sum := sha256.Sum256(append(slices.Clone(dump[:]), sampleType...))
	return pprofile.ProfileID(sum[:16])
}

func (b *builder) profileAttributes(p *profile.Profile, attrs map[string]string) []int32 {
	var out []int32
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		if attrs[k] != "" {
			out = append(out, b.text(k, attrs[k]))
		}
	}
	if len(p.Comments) > 0 {
		out = append(out, b.attr(keyComment, p.Comments, nil, ""))
	}
	return out
}

// sample is one sample with all its values: what identifies it is the stack and the set of attributes.
type sample struct {
	stack  int32
	attrs  []int32
	values []int64
}

// samples interns p's stacks and labels and adds up samples that are equal in both, in the order of first appearance.
func (b *builder) samples(p *profile.Profile, common map[string]string) []sample {
	out := make([]sample, 0, len(p.Sample))
	seen := make(map[string]int, len(p.Sample))
	var locations []int32
	var key []byte
	for _, s := range p.Sample {
		if allZero(s.Value) {
			continue
		}
		locations = locations[:0]
		for _, l := range s.Location {
			locations = append(locations, b.location(l))
		}
		row := sample{stack: b.stack(locations), attrs: b.labels(s, common)}
		key = binary.AppendUvarint(key[:0], uint64(row.stack))
		for _, a := range row.attrs {
			key = binary.AppendUvarint(key, uint64(a))
		}
		i, ok := seen[string(key)]
		if !ok {
			row.values = slices.Clone(s.Value)
			seen[string(key)] = len(out)
			out = append(out, row)
			continue
		}
		for j, v := range s.Value {
			out[i].values[j] += v
		}
	}
	return out
}

func allZero(values []int64) bool {
	for _, v := range values {
		if v != 0 {
			return false
		}
	}
	return true
}

func (b *builder) location(l *profile.Location) int32 {
	if i := b.locations.get(l.ID); i != 0 {
		return i
	}
	python := stack.IsPython(l)
	mapping, address, frameType := int32(0), uint64(0), frameTypePython
	if !python {
		mapping, address, frameType = b.mapping(l.Mapping), l.Address, frameTypeNative
	}
	attrs := []int32{b.text(keyFrameType, frameType)}
	b.lines = b.lines[:0]
	for _, ln := range l.Line {
		b.lines = append(b.lines, line{b.function(ln.Function), ln.Line, ln.Column})
	}
	i := b.dict.location(mapping, address, b.lines, attrs)
	b.locations.set(l.ID, i)
	return i
}

func (b *builder) function(f *profile.Function) int32 {
	if f == nil {
		return 0
	}
	if i := b.functions.get(f.ID); i != 0 {
		return i
	}
	i := b.dict.function(f.Name, f.SystemName, f.Filename, f.StartLine)
	b.functions.set(f.ID, i)
	return i
}

func (b *builder) mapping(m *profile.Mapping) int32 {
	if m == nil {
		return 0
	}
	if i := b.mappings.get(m.ID); i != 0 {
		return i
	}
	var buildID int32
	if _, err := hex.DecodeString(m.BuildID); err == nil && m.BuildID != "" {
		buildID = b.text(keyGNUBuildID, m.BuildID)
	}
	i := b.dict.mapping(m.Start, m.Limit, m.Offset, m.File, buildID)
	b.mappings.set(m.ID, i)
	return i
}

// labels interns a sample's labels as attributes, in the order of their keys.
func (b *builder) labels(s *profile.Sample, common map[string]string) []int32 {
	if len(s.Label) == 0 && len(s.NumLabel) == 0 {
		return nil
	}
	keys := make([]string, 0, len(s.Label)+len(s.NumLabel))
	for k := range s.Label {
		keys = append(keys, k)
	}
	for k := range s.NumLabel {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var out []int32
	for _, k := range slices.Compact(keys) {
		texts, numbers := s.Label[k], s.NumLabel[k]
		if len(texts)+len(numbers) == 0 {
			continue
		}
		if len(texts) == 1 && len(numbers) == 0 && common[k] == texts[0] {
			continue
		}
		out = append(out, b.attr(k, texts, numbers, ucum(s.NumUnit[k])))
	}
	return out
}

// ucumUnits are pprof's names of units; attributes have UCUM's (proto KeyValueAndUnit), sample types keep pprof's.
var ucumUnits = map[string]string{
	"bytes": "By", "byte": "By", "kilobytes": "KiBy", "megabytes": "MiBy", "gigabytes": "GiBy",
	"nanoseconds": "ns", "microseconds": "us", "milliseconds": "ms", "seconds": "s", "minutes": "min", "hours": "h",
	"count": "1",
}

// ucum gives the one unit of a label's values, "" if they have none or several.
func ucum(units []string) string {
	if len(units) == 0 {
		return ""
	}
	for _, u := range units[1:] {
		if u != units[0] {
			return ""
		}
	}
	if u, ok := ucumUnits[units[0]]; ok {
		return u
	}
	return units[0]
}

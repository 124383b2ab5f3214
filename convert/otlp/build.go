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

// A request is what is sent of one pprof profile: one profile per sample type on one dictionary. Values are the profile's own,
// in its units; samples that are 0 in a sample type are absent from that profile, and a profile without samples is absent
// altogether, because receivers drop it.
type request struct {
	*tables
	resource     pcommon.Map
	scopeVersion string
	profiles     []header
	common       []int32 // attributes of every profile
	samples      []sample
	values       []int64 // of all samples, width each
	width        int
}

// header is a profile but for its samples: those that are not 0 in its column.
type header struct {
	column                 int
	samples                int // their number
	sampleType, sampleUnit int32
	periodType, periodUnit int32
	period                 int64
	time                   pcommon.Timestamp
	duration               uint64
	id                     pprofile.ProfileID
}

// sample is one sample: what identifies it is the stack and the set of attributes.
type sample struct {
	stack int32
	attrs []int32
}

func newRequest(p *profile.Profile, opts Options) (*request, error) {
	frames, err := check(p)
	if err != nil {
		return nil, fmt.Errorf("building OTLP profiles: %w", err)
	}
	r := &request{
		tables:       newTables(len(p.Function), len(p.Location), len(p.Sample), frames),
		resource:     pcommon.NewMap(),
		scopeVersion: opts.ScopeVersion,
		width:        len(p.SampleType),
	}
	if err := putSorted(r.resource, opts.Resource); err != nil {
		return nil, fmt.Errorf("building OTLP profiles: resource attributes: %w", err)
	}
	b := &builder{
		request:      r,
		functionRows: newRows(len(p.Function)),
		mappingRows:  newRows(len(p.Mapping)),
		locationRows: newRows(len(p.Location)),
	}
	b.profileAttributes(p, opts.Attributes)
	b.collect(p, opts.Attributes)
	for _, column := range columns(p.SampleType) {
		n := 0
		for i := column; i < len(r.values); i += r.width {
			if r.values[i] != 0 {
				n++
			}
		}
		if n > 0 {
			b.header(p, column, n, opts)
		}
	}
	return r, nil
}

// check says whether p can be followed, and how many frames its samples have.
func check(p *profile.Profile) (frames int, err error) {
	if len(p.SampleType) == 0 {
		return 0, errors.New("the profile has no sample type")
	}
	if err := p.CheckValid(); err != nil {
		return 0, err
	}
	for _, s := range p.Sample {
		frames += len(s.Location)
	}
	return frames, nil
}

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
	*request
	functionRows, mappingRows, locationRows rows // by the ids that p gives them
	scratch                                 []line
	native, python                          int32 // attributes of locations
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

func (b *builder) header(p *profile.Profile, column, samples int, opts Options) {
	st := p.SampleType[column]
	h := header{column: column, samples: samples, sampleType: b.str(st.Type), sampleUnit: b.str(st.Unit), id: profileID(opts.ProfileID, st.Type)}

	// Pyroscope refuses a profile without a period, and names the series after the period type (newProfileBuilder in its
	// pkg/ingester/otlp/convert.go).
	periodType, periodUnit, period := "space", "bytes", p.Period
	if p.PeriodType != nil && p.PeriodType.Type != "" {
		periodType, periodUnit = p.PeriodType.Type, p.PeriodType.Unit
	}
	if period <= 0 {
		period = 1 // every byte was seen
	}
	h.periodType, h.periodUnit, h.period = b.str(periodType), b.str(periodUnit), period

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
		h.time = pcommon.NewTimestampFromTime(when)
	}
	if duration > 0 {
		h.duration = uint64(duration)
	}
	b.profiles = append(b.profiles, h)
}

func profileID(dump [16]byte, sampleType string) pprofile.ProfileID {
	if dump == ([16]byte{}) || sampleType == sampleTypeOrder[0] {
		return pprofile.ProfileID(dump)
	}
	sum := sha256.Sum256(append(slices.Clone(dump[:]), sampleType...))
	return pprofile.ProfileID(sum[:16])
}

func (b *builder) profileAttributes(p *profile.Profile, attrs map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		if attrs[k] != "" {
			b.common = append(b.common, b.text(k, attrs[k]))
		}
	}
	if len(p.Comments) > 0 {
		b.common = append(b.common, b.attribute(keyComment, p.Comments, nil, ""))
	}
}

// collect interns p's stacks and labels and adds up samples that are equal in both, in the order of first appearance.
func (b *builder) collect(p *profile.Profile, common map[string]string) {
	b.samples = make([]sample, 0, len(p.Sample))
	b.values = make([]int64, 0, len(p.Sample)*b.width)
	plain := make([]int32, 1, len(p.Sample)+1) // the sample without labels of each stack, plus 1
	labelled := map[string]int32{}
	var locations []int32
	for _, s := range p.Sample {
		if allZero(s.Value) {
			continue
		}
		locations = locations[:0]
		for _, l := range s.Location {
			locations = append(locations, b.location(l))
		}
		row := sample{b.stack(locations), b.labels(s, common)}
		for len(plain) < len(b.stacks) {
			plain = append(plain, 0)
		}
		same := plain[row.stack]
		if len(row.attrs) > 0 {
			b.key = binary.AppendUvarint(b.key[:0], uint64(row.stack))
			for _, a := range row.attrs {
				b.key = binary.AppendUvarint(b.key, uint64(a))
			}
			same = labelled[string(b.key)]
		}
		if same != 0 {
			for j, v := range s.Value {
				b.values[int(same-1)*b.width+j] += v
			}
			continue
		}
		b.samples = append(b.samples, row)
		b.values = append(b.values, s.Value...)
		if len(row.attrs) > 0 {
			labelled[string(b.key)] = int32(len(b.samples))
		} else {
			plain[row.stack] = int32(len(b.samples))
		}
	}
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
	if i := b.locationRows.get(l.ID); i != 0 {
		return i
	}
	mapping, address, frameType := int32(0), uint64(0), int32(0)
	if stack.IsPython(l) {
		frameType = b.frameType(&b.python, frameTypePython)
	} else {
		mapping, address = b.mapping(l.Mapping), l.Address
		frameType = b.frameType(&b.native, frameTypeNative)
	}
	b.scratch = b.scratch[:0]
	for _, ln := range l.Line {
		b.scratch = append(b.scratch, line{b.function(ln.Function), ln.Line, ln.Column})
	}
	i := b.tables.location(mapping, address, b.scratch, frameType)
	b.locationRows.set(l.ID, i)
	return i
}

func (b *builder) frameType(known *int32, name string) int32 {
	if *known == 0 {
		*known = b.text(keyFrameType, name)
	}
	return *known
}

func (b *builder) function(f *profile.Function) int32 {
	if f == nil {
		return 0
	}
	if i := b.functionRows.get(f.ID); i != 0 {
		return i
	}
	i := b.tables.function(f.Name, f.SystemName, f.Filename, f.StartLine)
	b.functionRows.set(f.ID, i)
	return i
}

func (b *builder) mapping(m *profile.Mapping) int32 {
	if m == nil {
		return 0
	}
	if i := b.mappingRows.get(m.ID); i != 0 {
		return i
	}
	var buildID int32
	if _, err := hex.DecodeString(m.BuildID); err == nil && m.BuildID != "" {
		buildID = b.text(keyGNUBuildID, m.BuildID)
	}
	i := b.tables.mapping(m.Start, m.Limit, m.Offset, m.File, buildID)
	b.mappingRows.set(m.ID, i)
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
		out = append(out, b.attribute(k, texts, numbers, ucum(s.NumUnit[k])))
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

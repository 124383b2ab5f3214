// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/heapwire/heapwire/convert/stack"
)

// Pprof is one pprof profile, read from those OTLP profiles of a scope that belong together: they have time, duration,
// period and attributes in common, and a sample type each.
type Pprof struct {
	// Resource and Scope are those of the data that was read, not copies.
	Resource pcommon.Resource
	Scope    pcommon.InstrumentationScope

	// Attributes are those of the profiles, as texts; lists are left out.
	Attributes map[string]string

	// ProfileID is that of the first of the profiles, Time is theirs; zero: none.
	ProfileID [16]byte
	Time      time.Time
	Duration  time.Duration

	Profile *profile.Profile

	// In is where the profiles stand.
	In []Place
}

// Place is where an OTLP profile stands: the indices of its resource, its scope there, and itself there.
type Place struct{ Resource, Scope, Profile int }

// Reasons for which Read leaves out a sample.
const (
	LostIndex    = "index"     // an index outside of its table
	LostValues   = "values"    // neither values nor timestamps, or not as many of both; a sum above 2^63-1
	LostType     = "type"      // the profile has no sample type
	LostTooLarge = "too_large" // more frames than a request can honestly have
)

// Lost counts what Read left out. The zero value is nothing.
type Lost struct {
	Samples map[string]int // by reason
	Labels  int            // attributes of samples that no label can hold
	First   error          // says of the first sample where it is and what is wrong
}

// Total is the number of samples lost.
func (l Lost) Total() (n int) {
	for _, samples := range l.Samples {
		n += samples
	}
	return n
}

func (l *Lost) sample(reason string, n int, err error) {
	if n == 0 {
		return
	}
	if l.Samples == nil {
		l.Samples = map[string]int{}
	}
	l.Samples[reason] += n
	if l.First == nil {
		l.First = err
	}
}

const (
	// maxColumns bounds the sample types of one pprof profile; more make another.
	maxColumns = 16
	// maxReadFrames bounds the frames of all samples, and the lines of all frames: each takes a byte or more of a request
	// when it is written down, but any number of samples may share a stack, and stacks a frame.
	maxReadFrames = MaxRequestBytes
)

// Read is the way back from Build, for profiles of any origin: mappings, addresses, inlined lines and build ids stay, the
// attributes of samples become labels, links the labels trace_id and span_id, and a sample with timestamps the sum of its
// values, or their number. Samples that are equal in all that are added up. Frames of Python are put on
// [stack.PythonMapping]. What cannot be followed is left out and counted; Read does not change pd and does not fail.
func Read(pd pprofile.Profiles) ([]Pprof, Lost) {
	r := &reader{d: pd.Dictionary(), left: maxReadFrames}
	var out []Pprof
	for i, rp := range pd.ResourceProfiles().All() {
		for j, sp := range rp.ScopeProfiles().All() {
			var group *group
			for k, p := range sp.Profiles().All() {
				at := Place{i, j, k}
				head, ok := r.head(p)
				if !ok {
					r.lost.sample(LostType, p.Samples().Len(), fmt.Errorf("profile %d of scope %d of resource %d: its sample type is outside of the string table, or has no name", k, j, i))
					continue
				}
				if group == nil || !group.takes(head) {
					if group != nil {
						out = group.finish(out)
					}
					group = newGroup(r, head, rp.Resource(), sp.Scope())
				}
				group.add(p, head, at)
			}
			if group != nil {
				out = group.finish(out)
			}
		}
	}
	return out, r.lost
}

type reader struct {
	d    pprofile.ProfilesDictionary
	lost Lost
	left int // frames and lines that may still come
}

// spend says whether n more frames, or lines of them, are still within what is allowed.
func (r *reader) spend(n int) error {
	if r.left -= n; r.left < 0 {
		r.left = 0
		return errTooMany
	}
	return nil
}

var errTooMany = fmt.Errorf("more than %d frames in all", maxReadFrames)

// str gives row i of the string table.
func (r *reader) str(i int32) (string, bool) {
	if i == 0 {
		return "", true // none, even without a table
	}
	if i < 0 || int(i) >= r.d.StringTable().Len() {
		return "", false
	}
	return r.d.StringTable().At(int(i)), true
}

// head is what profiles that belong together have in common, and the sample type, in which they differ.
type head struct {
	sampleType profile.ValueType
	periodType profile.ValueType
	period     int64
	time       pcommon.Timestamp
	duration   uint64
	attributes []int32
	id         pprofile.ProfileID
}

func (r *reader) head(p pprofile.Profile) (head, bool) {
	h := head{period: p.Period(), time: p.Time(), duration: p.DurationNano(), attributes: p.AttributeIndices().AsRaw(), id: p.ProfileID()}
	var ok, unit bool
	h.sampleType.Type, ok = r.str(p.SampleType().TypeStrindex())
	h.sampleType.Unit, unit = r.str(p.SampleType().UnitStrindex())
	if !ok || !unit || h.sampleType.Type == "" {
		return h, false
	}
	// Without them the profile still says what it has to.
	h.periodType.Type, ok = r.str(p.PeriodType().TypeStrindex())
	h.periodType.Unit, unit = r.str(p.PeriodType().UnitStrindex())
	if !ok || !unit {
		h.periodType = profile.ValueType{}
	}
	slices.Sort(h.attributes)
	return h, true
}

// group makes one pprof profile.
type group struct {
	r     *reader
	first head
	out   Pprof

	rows      map[string]*profile.Sample
	mappings  map[int32]*profile.Mapping
	functions map[int32]*profile.Function
	locations map[int32]*profile.Location
	stacks    map[int32][]*profile.Location
	bad       map[int32]error // stacks that cannot be followed
	badFrames map[int32]error // locations
	python    *profile.Mapping
	key       []byte
}

func newGroup(r *reader, h head, resource pcommon.Resource, scope pcommon.InstrumentationScope) *group {
	g := &group{
		r: r, first: h, rows: map[string]*profile.Sample{}, mappings: map[int32]*profile.Mapping{}, functions: map[int32]*profile.Function{},
		locations: map[int32]*profile.Location{}, stacks: map[int32][]*profile.Location{0: nil}, bad: map[int32]error{}, badFrames: map[int32]error{},
		out: Pprof{Resource: resource, Scope: scope, ProfileID: h.id, Attributes: map[string]string{}, Duration: time.Duration(min(h.duration, 1<<63-1))},
	}
	p := &profile.Profile{Period: h.period, DurationNanos: int64(g.out.Duration)}
	if h.periodType != (profile.ValueType{}) {
		p.PeriodType = &profile.ValueType{Type: h.periodType.Type, Unit: h.periodType.Unit}
	}
	if h.time != 0 && h.time < 1<<63 {
		g.out.Time = h.time.AsTime()
		p.TimeNanos = int64(h.time)
	}
	if v, ok := scope.Attributes().Get("pprof.scope.default_sample_type"); ok {
		p.DefaultSampleType = v.Str()
	}
	for _, i := range h.attributes {
		key, value, _, ok := r.attribute(i)
		if !ok {
			continue
		}
		texts, numbers, _ := scalars(value)
		switch {
		case key == keyComment:
			p.Comments = texts
		case key == "pprof.profile.drop_frames":
			p.DropFrames = value.AsString()
		case key == "pprof.profile.keep_frames":
			p.KeepFrames = value.AsString()
		case key == "pprof.profile.doc_url":
			p.DocURL = value.AsString()
		case len(texts) == 1 && len(numbers) == 0:
			g.out.Attributes[key] = texts[0]
		case len(texts) == 0 && len(numbers) == 1:
			g.out.Attributes[key] = strconv.FormatInt(numbers[0], 10)
		}
	}
	g.out.Profile = p
	return g
}

// takes says whether a profile is one more sample type of the group.
func (g *group) takes(h head) bool {
	f := g.first
	types := g.out.Profile.SampleType
	return f.time == h.time && f.duration == h.duration && f.period == h.period && f.periodType.Type == h.periodType.Type && f.periodType.Unit == h.periodType.Unit &&
		slices.Equal(f.attributes, h.attributes) && len(types) < maxColumns &&
		!slices.ContainsFunc(types, func(t *profile.ValueType) bool { return t.Type == h.sampleType.Type && t.Unit == h.sampleType.Unit })
}

func (g *group) add(p pprofile.Profile, h head, at Place) {
	out := g.out.Profile
	column := len(out.SampleType)
	out.SampleType = append(out.SampleType, &profile.ValueType{Type: h.sampleType.Type, Unit: h.sampleType.Unit})
	g.out.In = append(g.out.In, at)
	for i, s := range p.Samples().All() {
		if reason, err := g.sample(s, column); err != nil {
			g.r.lost.sample(reason, 1, fmt.Errorf("sample %d of profile %d of scope %d of resource %d: %w", i, at.Profile, at.Scope, at.Resource, err))
		}
	}
}

func (g *group) sample(s pprofile.Sample, column int) (lost string, err error) {
	value, err := valueOf(s)
	if err != nil {
		return LostValues, err
	}
	locations, err := g.stack(s.StackIndex())
	switch {
	case errors.Is(err, errTooMany):
		return LostTooLarge, err
	case err != nil:
		return LostIndex, err
	}
	d := g.r.d
	link := s.LinkIndex()
	if link < 0 || link > 0 && int(link) >= d.LinkTable().Len() {
		return LostIndex, fmt.Errorf("link index %d outside of a table of %d", link, d.LinkTable().Len())
	}
	attrs := s.AttributeIndices().AsRaw()
	slices.Sort(attrs)
	for _, a := range attrs {
		if a < 0 || int(a) >= d.AttributeTable().Len() {
			return LostIndex, fmt.Errorf("attribute index %d outside of a table of %d", a, d.AttributeTable().Len())
		}
	}
	g.key = appendInts(g.key[:0], append(attrs, s.StackIndex(), link))
	row := g.rows[string(g.key)]
	if row == nil {
		if err := g.r.spend(len(locations)); err != nil {
			return LostTooLarge, err
		}
		row = &profile.Sample{Location: locations}
		g.label(row, attrs, link)
		g.rows[string(g.key)] = row
		g.out.Profile.Sample = append(g.out.Profile.Sample, row)
	}
	for len(row.Value) <= column {
		row.Value = append(row.Value, 0)
	}
	sum, ok := plus(row.Value[column], value)
	if !ok {
		return LostValues, fmt.Errorf("values of %d and %d for the same stack", row.Value[column], value)
	}
	row.Value[column] = sum
	return "", nil
}

func appendInts(key []byte, numbers []int32) []byte {
	for _, n := range numbers {
		key = append(key, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	return key
}

// plus adds, and says whether the sum can be told.
func plus(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}

func valueOf(s pprofile.Sample) (int64, error) {
	values, times := s.Values().Len(), s.TimestampsUnixNano().Len()
	switch {
	case values == 0 && times > 0:
		return int64(times), nil
	case values == 0 || times > 0 && times != values:
		return 0, fmt.Errorf("%d values and %d timestamps", values, times)
	}
	var sum int64
	for _, v := range s.Values().All() {
		var ok bool
		if sum, ok = plus(sum, v); !ok {
			return 0, errors.New("values whose sum is not within 64 bits")
		}
	}
	return sum, nil
}

// label gives a sample its attributes. Their indices were looked at before.
func (g *group) label(row *profile.Sample, attrs []int32, link int32) {
	text := func(key string, values ...string) {
		if len(values) == 0 {
			return
		}
		if row.Label == nil {
			row.Label = map[string][]string{}
		}
		row.Label[key] = append(row.Label[key], values...)
	}
	for _, a := range attrs {
		if a == 0 {
			continue
		}
		key, value, unit, ok := g.r.attribute(a)
		if !ok {
			g.r.lost.Labels++
			continue
		}
		texts, numbers, whole := scalars(value)
		if !whole {
			g.r.lost.Labels++
		}
		text(key, texts...)
		if len(numbers) == 0 {
			continue
		}
		if row.NumLabel == nil {
			row.NumLabel = map[string][]int64{}
		}
		had := len(row.NumLabel[key])
		row.NumLabel[key] = append(row.NumLabel[key], numbers...)
		if unit != "" || row.NumUnit[key] != nil {
			if row.NumUnit == nil {
				row.NumUnit = map[string][]string{}
			}
			units := append(row.NumUnit[key], make([]string, had-len(row.NumUnit[key]))...)
			for range numbers {
				units = append(units, unit)
			}
			row.NumUnit[key] = units
		}
	}
	if link != 0 {
		l := g.r.d.LinkTable().At(int(link))
		if !l.TraceID().IsEmpty() {
			text("trace_id", l.TraceID().String())
		}
		if !l.SpanID().IsEmpty() {
			text("span_id", l.SpanID().String())
		}
	}
}

// attribute gives row i of the attribute table; the unit is pprof's.
func (r *reader) attribute(i int32) (key string, value pcommon.Value, unit string, ok bool) {
	if i <= 0 || int(i) >= r.d.AttributeTable().Len() {
		return "", pcommon.Value{}, "", false
	}
	a := r.d.AttributeTable().At(int(i))
	key, ok = r.str(a.KeyStrindex())
	unit, known := r.str(a.UnitStrindex())
	if !known {
		unit = ""
	}
	if u, ok := pprofUnits[unit]; ok {
		unit = u
	}
	return key, a.Value(), unit, ok && key != ""
}

// pprofUnits is the way back from ucumUnits.
var pprofUnits = func() map[string]string {
	units := map[string]string{}
	for p, u := range ucumUnits {
		if other, ok := units[u]; !ok || len(p) > len(other) {
			units[u] = p // "bytes" rather than "byte"
		}
	}
	return units
}()

// scalars gives the texts and whole numbers of a value or of a list of them. Whole is false if there is more to it.
func scalars(v pcommon.Value) (texts []string, numbers []int64, whole bool) {
	switch v.Type() {
	case pcommon.ValueTypeInt:
		return nil, []int64{v.Int()}, true
	case pcommon.ValueTypeStr, pcommon.ValueTypeBool, pcommon.ValueTypeDouble:
		return []string{v.AsString()}, nil, true
	case pcommon.ValueTypeSlice:
		whole = true
		for _, e := range v.Slice().All() {
			switch e.Type() {
			case pcommon.ValueTypeInt:
				numbers = append(numbers, e.Int())
			case pcommon.ValueTypeStr, pcommon.ValueTypeBool, pcommon.ValueTypeDouble:
				texts = append(texts, e.AsString())
			default:
				whole = false
			}
		}
		return texts, numbers, whole
	}
	return nil, nil, false
}

func (g *group) stack(i int32) ([]*profile.Location, error) {
	if s, ok := g.stacks[i]; ok {
		return s, nil
	}
	if err := g.bad[i]; err != nil {
		return nil, err
	}
	s, err := g.newStack(i)
	if err != nil {
		g.bad[i] = err
		return nil, err
	}
	g.stacks[i] = s
	return s, nil
}

func (g *group) newStack(i int32) ([]*profile.Location, error) {
	table := g.r.d.StackTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, fmt.Errorf("stack index %d outside of a table of %d", i, table.Len())
	}
	indices := table.At(int(i)).LocationIndices()
	if err := g.r.spend(indices.Len()); err != nil {
		return nil, err
	}
	s := make([]*profile.Location, 0, indices.Len())
	for _, l := range indices.All() {
		location, err := g.location(l)
		if err != nil {
			return nil, fmt.Errorf("stack %d: %w", i, err)
		}
		s = append(s, location)
	}
	return s, nil
}

func (g *group) location(i int32) (*profile.Location, error) {
	if l := g.locations[i]; l != nil {
		return l, nil
	}
	if err := g.badFrames[i]; err != nil {
		return nil, err
	}
	l, err := g.newLocation(i)
	if err != nil {
		g.badFrames[i] = err
		return nil, err
	}
	g.locations[i] = l
	g.out.Profile.Location = append(g.out.Profile.Location, l)
	return l, nil
}

func (g *group) newLocation(i int32) (*profile.Location, error) {
	table := g.r.d.LocationTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, fmt.Errorf("location index %d outside of a table of %d", i, table.Len())
	}
	row := table.At(int(i))
	m, err := g.mapping(row.MappingIndex())
	if err != nil {
		return nil, fmt.Errorf("location %d: %w", i, err)
	}
	l := &profile.Location{ID: uint64(len(g.out.Profile.Location) + 1), Mapping: m, Address: row.Address()}
	if m == nil && g.r.frameType(row) == frameTypePython {
		l.Mapping, l.Address = g.pythonMapping(), 0
	}
	if err := g.r.spend(row.Lines().Len() + row.AttributeIndices().Len()); err != nil {
		return nil, err
	}
	for _, ln := range row.Lines().All() {
		f, err := g.function(ln.FunctionIndex())
		if err != nil {
			return nil, fmt.Errorf("location %d: %w", i, err)
		}
		if f == nil {
			continue // index 0, no function; pprof has no line without one, and the frame keeps its address
		}
		l.Line = append(l.Line, profile.Line{Function: f, Line: ln.Line(), Column: ln.Column()})
	}
	if l.Mapping != nil && len(l.Line) > 0 {
		l.Mapping.HasFunctions = true
		l.Mapping.HasInlineFrames = l.Mapping.HasInlineFrames || len(l.Line) > 1
		for _, ln := range l.Line {
			l.Mapping.HasFilenames = l.Mapping.HasFilenames || ln.Function.Filename != ""
			l.Mapping.HasLineNumbers = l.Mapping.HasLineNumbers || ln.Line != 0
		}
	}
	return l, nil
}

func (r *reader) frameType(l pprofile.Location) string {
	for _, a := range l.AttributeIndices().All() {
		if key, value, _, ok := r.attribute(a); ok && key == keyFrameType {
			return value.AsString()
		}
	}
	return ""
}

func (g *group) pythonMapping() *profile.Mapping {
	if g.python == nil {
		g.python = g.newMapping(0, 0, 0, stack.PythonMapping)
	}
	return g.python
}

func (g *group) newMapping(start, limit, offset uint64, file string) *profile.Mapping {
	p := g.out.Profile
	m := &profile.Mapping{ID: uint64(len(p.Mapping) + 1), Start: start, Limit: limit, Offset: offset, File: file}
	p.Mapping = append(p.Mapping, m)
	return m
}

// buildIDs are the attributes that may name a mapping's build, the one that other tools look up by first.
var buildIDs = []string{keyGNUBuildID, "process.executable.build_id.go", "process.executable.build_id.htlhash"}

func (g *group) mapping(i int32) (*profile.Mapping, error) {
	if m, ok := g.mappings[i]; ok || i == 0 {
		return m, nil
	}
	table := g.r.d.MappingTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, fmt.Errorf("mapping index %d outside of a table of %d", i, table.Len())
	}
	row := table.At(int(i))
	file, ok := g.r.str(row.FilenameStrindex())
	if !ok {
		return nil, fmt.Errorf("mapping %d: string index %d outside of the table", i, row.FilenameStrindex())
	}
	m := g.newMapping(row.MemoryStart(), row.MemoryLimit(), row.FileOffset(), file)
	best := len(buildIDs)
	for _, a := range row.AttributeIndices().All() {
		if key, value, _, ok := g.r.attribute(a); ok {
			if n := slices.Index(buildIDs, key); n >= 0 && n < best && value.Type() == pcommon.ValueTypeStr {
				m.BuildID, best = value.Str(), n
			}
		}
	}
	g.mappings[i] = m
	return m, nil
}

func (g *group) function(i int32) (*profile.Function, error) {
	if f := g.functions[i]; f != nil || i == 0 {
		return f, nil
	}
	table := g.r.d.FunctionTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, fmt.Errorf("function index %d outside of a table of %d", i, table.Len())
	}
	row := table.At(int(i))
	f := &profile.Function{StartLine: row.StartLine()}
	for _, text := range []struct {
		into *string
		from int32
	}{{&f.Name, row.NameStrindex()}, {&f.SystemName, row.SystemNameStrindex()}, {&f.Filename, row.FilenameStrindex()}} {
		var ok bool
		if *text.into, ok = g.r.str(text.from); !ok {
			return nil, fmt.Errorf("function %d: string index %d outside of the table", i, text.from)
		}
	}
	switch {
	case f.SystemName == "":
		f.SystemName = f.Name // Build leaves out what is the same
	case f.Name == "":
		f.Name = f.SystemName
	}
	p := g.out.Profile
	f.ID = uint64(len(p.Function) + 1)
	p.Function = append(p.Function, f)
	g.functions[i] = f
	return f, nil
}

// finish appends the profile, if it has a sample.
func (g *group) finish(to []Pprof) []Pprof {
	p := g.out.Profile
	if len(p.Sample) == 0 {
		return to
	}
	for _, s := range p.Sample {
		for len(s.Value) < len(p.SampleType) {
			s.Value = append(s.Value, 0)
		}
	}
	return append(to, g.out)
}

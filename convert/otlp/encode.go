// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"
	"math"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// MaxRequestBytes is the most an OTLP client may send in one request, before and after compression
// (https://opentelemetry.io/docs/specs/otlp/).
const MaxRequestBytes = 64 << 20

// Encoding says how the strings of resource attributes are written.
type Encoding int

const (
	// Reference writes them as indices into the string table, as the Collector does.
	Reference Encoding = iota
	// Inline writes them in place. Conforming receivers take both; Pyroscope up to 2.2.1 takes only this one.
	Inline
)

// ParseEncoding reads the name of an encoding: "reference" (also ""), "inline".
func ParseEncoding(s string) (Encoding, error) {
	switch s {
	case "", "reference":
		return Reference, nil
	case "inline":
		return Inline, nil
	}
	return 0, fmt.Errorf("attribute encoding %q: want reference or inline", s)
}

// Encode gives the bytes of an ExportProfilesServiceRequest, with the contents of [Build]; nil if there is nothing to send. It
// writes them without going through pprofile, which allocates each row of each table.
func Encode(p *profile.Profile, opts Options, enc Encoding) ([]byte, error) {
	r, err := newRequest(p, opts)
	if err != nil || len(r.profiles) == 0 {
		return nil, err
	}
	if enc == Reference {
		r.internMap(r.resource)
	}
	w := newBackward(r.sizeAbout())
	r.write(w, enc)
	return w.bytes(), nil
}

// internMap puts into the table what is going to be referred to.
func (r *request) internMap(m pcommon.Map) {
	for k, v := range m.All() {
		r.str(k)
		r.internValue(v)
	}
}

func (r *request) internValue(v pcommon.Value) {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		r.str(v.Str())
	case pcommon.ValueTypeMap:
		r.internMap(v.Map())
	case pcommon.ValueTypeSlice:
		for _, e := range v.Slice().All() {
			r.internValue(e)
		}
	}
}

// sizeAbout is what the request usually takes, and a little more.
func (r *request) sizeAbout() int {
	index := 1
	for n := len(r.locations) >> 7; n > 0; n >>= 7 {
		index++
	}
	n := 4096 + len(r.frames)*index + 8*len(r.stacks) + 16*len(r.functions) + 24*len(r.locations) + 8*len(r.lines)
	for _, s := range r.strings {
		n += len(s) + 3
	}
	for i := range r.profiles {
		n += 64 + 14*r.profiles[i].samples
	}
	return n
}

// Numbers of fields, by message, in opentelemetry/proto/{collector/profiles/v1development/profiles_service, resource/v1/resource,
// profiles/v1development/profiles, common/v1/common}.proto, version 1.10.
const (
	requestResourceProfiles, requestDictionary = 1, 2

	resourceProfilesResource, resourceProfilesScopes, resourceProfilesSchema = 1, 2, 3
	scopeProfilesScope, scopeProfilesProfiles, scopeProfilesSchema           = 1, 2, 3

	resourceAttributes      = 1
	scopeName, scopeVersion = 1, 2

	profileSampleType, profileSamples, profileTime, profileDuration  = 1, 2, 3, 4
	profilePeriodType, profilePeriod, profileIdent, profileAttribute = 5, 6, 7, 11

	valueTypeType, valueTypeUnit               = 1, 2
	sampleStack, sampleAttribute, sampleValues = 1, 2, 4

	dictMappings, dictLocations, dictFunctions, dictLinks = 1, 2, 3, 4
	dictStrings, dictAttributes, dictStacks               = 5, 6, 7

	mappingStart, mappingLimit, mappingOffset, mappingFile, mappingAttribute = 1, 2, 3, 4, 5

	locationMapping, locationAddress, locationLines, locationAttribute = 1, 2, 3, 4

	lineFunction, lineLine, lineColumn                        = 1, 2, 3
	functionName, functionSystem, functionFile, functionStart = 1, 2, 3, 4
	attributeKey, attributeValue, attributeUnit               = 1, 2, 3
	stackLocations                                            = 1

	keyValueKey, keyValueValue, keyValueKeyIndex                      = 1, 2, 3
	anyString, anyBool, anyInt, anyDouble, anyArray, anyMap, anyBytes = 1, 2, 3, 4, 5, 6, 7
	anyStringIndex                                                    = 8
	listValues                                                        = 1
)

func (r *request) write(w *backward, enc Encoding) {
	r.tables.write(w)
	w.message(requestDictionary, 0)

	since := w.written()
	w.text(resourceProfilesSchema, semconv.SchemaURL)
	r.scope(w)
	resource := w.written()
	r.pairs(w, resourceAttributes, r.resource, enc)
	w.message(resourceProfilesResource, resource)
	w.message(requestResourceProfiles, since)
}

func (r *request) scope(w *backward) {
	since := w.written()
	w.text(scopeProfilesSchema, semconv.SchemaURL)
	for i := len(r.profiles) - 1; i >= 0; i-- {
		r.profile(w, &r.profiles[i])
	}
	scope := w.written()
	if r.scopeVersion != "" {
		w.text(scopeVersion, r.scopeVersion)
	}
	w.text(scopeName, ScopeName)
	w.message(scopeProfilesScope, scope)
	w.message(resourceProfilesScopes, since)
}

func (r *request) profile(w *backward, h *header) {
	since := w.written()
	w.packed(profileAttribute, r.common)
	if !h.id.IsEmpty() {
		w.text(profileIdent, string(h.id[:]))
	}
	w.number(profilePeriod, uint64(h.period))
	valueType(w, profilePeriodType, h.periodType, h.periodUnit)
	w.number(profileDuration, h.duration)
	if h.time != 0 {
		w.fixed64(profileTime, uint64(h.time))
	}
	for i := len(r.samples) - 1; i >= 0; i-- {
		v := r.values[i*r.width+h.column]
		if v == 0 {
			continue
		}
		s := w.written()
		w.room(24)
		end := w.written()
		w.varint(uint64(v))
		w.message(sampleValues, end)
		w.packed(sampleAttribute, r.samples[i].attrs)
		w.number(sampleStack, uint64(r.samples[i].stack))
		w.message(profileSamples, s)
	}
	valueType(w, profileSampleType, h.sampleType, h.sampleUnit)
	w.message(scopeProfilesProfiles, since)
}

func valueType(w *backward, field byte, name, unit int32) {
	since := w.written()
	w.number(valueTypeUnit, uint64(unit))
	w.number(valueTypeType, uint64(name))
	w.message(field, since)
}

func (t *tables) write(w *backward) {
	for i := len(t.stacks) - 1; i >= 0; i-- {
		since := w.written()
		w.packed(stackLocations, t.framesOf(int32(i)))
		w.message(dictStacks, since)
	}
	for i := len(t.attributes) - 1; i >= 0; i-- {
		a, since := &t.attributes[i], w.written()
		w.number(attributeUnit, uint64(a.unit))
		value := w.written()
		if i > 0 {
			a.write(w)
		}
		w.message(attributeValue, value)
		w.number(attributeKey, uint64(a.key))
		w.message(dictAttributes, since)
	}
	for i := len(t.strings) - 1; i >= 0; i-- {
		w.text(dictStrings, t.strings[i])
	}
	w.text(dictLinks, "") // row 0, of links that nobody has
	for i := len(t.functions) - 1; i >= 0; i-- {
		f, since := &t.functions[i], w.written()
		w.number(functionStart, uint64(f.startLine))
		w.number(functionFile, uint64(f.file))
		w.number(functionSystem, uint64(f.system))
		w.number(functionName, uint64(f.name))
		w.message(dictFunctions, since)
	}
	for i := len(t.locations) - 1; i >= 0; i-- {
		t.writeLocation(w, &t.locations[i])
	}
	for i := len(t.mappings) - 1; i >= 0; i-- {
		m, since := &t.mappings[i], w.written()
		if m.buildID != 0 {
			w.packed(mappingAttribute, []int32{m.buildID})
		}
		w.number(mappingFile, uint64(m.file))
		w.number(mappingOffset, m.offset)
		w.number(mappingLimit, m.limit)
		w.number(mappingStart, m.start)
		w.message(dictMappings, since)
	}
}

func (t *tables) writeLocation(w *backward, l *location) {
	since := w.written()
	if l.frameType != 0 {
		list := [1]int32{l.frameType}
		w.packed(locationAttribute, list[:])
	}
	lines := t.linesOf(l)
	for i := len(lines) - 1; i >= 0; i-- {
		ln, since := &lines[i], w.written()
		w.number(lineColumn, uint64(ln.column))
		w.number(lineLine, uint64(ln.line))
		w.number(lineFunction, uint64(ln.function))
		w.message(locationLines, since)
	}
	w.number(locationAddress, l.address)
	w.number(locationMapping, uint64(l.mapping))
	w.message(dictLocations, since)
}

// write writes the value of an attribute of the table, whose texts stay in place.
func (a *attribute) write(w *backward) {
	if len(a.texts)+len(a.numbers) == 1 {
		for _, s := range a.texts {
			w.text(anyString, s)
		}
		for _, n := range a.numbers {
			w.numberAlways(anyInt, uint64(n))
		}
		return
	}
	list := w.written()
	for i := len(a.numbers) - 1; i >= 0; i-- {
		since := w.written()
		w.numberAlways(anyInt, uint64(a.numbers[i]))
		w.message(listValues, since)
	}
	for i := len(a.texts) - 1; i >= 0; i-- {
		since := w.written()
		w.text(anyString, a.texts[i])
		w.message(listValues, since)
	}
	w.message(anyArray, list)
}

// pairs writes each pair of a map as a KeyValue.
func (r *request) pairs(w *backward, field byte, m pcommon.Map, enc Encoding) {
	type pair struct {
		key   string
		value pcommon.Value
	}
	list := make([]pair, 0, m.Len())
	for k, v := range m.All() {
		list = append(list, pair{k, v})
	}
	for i := len(list) - 1; i >= 0; i-- {
		since := w.written()
		key := list[i].key
		if enc == Reference {
			w.number(keyValueKeyIndex, uint64(r.str(key)))
		}
		value := w.written()
		r.anyValue(w, list[i].value, enc)
		w.message(keyValueValue, value)
		if enc == Inline && key != "" {
			w.text(keyValueKey, key)
		}
		w.message(field, since)
	}
}

func (r *request) anyValue(w *backward, v pcommon.Value, enc Encoding) {
	since := w.written()
	switch v.Type() {
	case pcommon.ValueTypeStr:
		if enc == Reference {
			w.numberAlways(anyStringIndex, uint64(r.str(v.Str())))
		} else {
			w.text(anyString, v.Str())
		}
	case pcommon.ValueTypeBool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		w.numberAlways(anyBool, n)
	case pcommon.ValueTypeInt:
		w.numberAlways(anyInt, uint64(v.Int()))
	case pcommon.ValueTypeDouble:
		w.fixed64(anyDouble, math.Float64bits(v.Double()))
	case pcommon.ValueTypeSlice:
		for i := v.Slice().Len() - 1; i >= 0; i-- {
			one := w.written()
			r.anyValue(w, v.Slice().At(i), enc)
			w.message(listValues, one)
		}
		w.message(anyArray, since)
	case pcommon.ValueTypeMap:
		r.pairs(w, listValues, v.Map(), enc)
		w.message(anyMap, since)
	case pcommon.ValueTypeBytes:
		w.text(anyBytes, string(v.Bytes().AsRaw()))
	}
}

// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"
	cpb "go.opentelemetry.io/proto/slim/otlp/collector/profiles/v1development"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/otlp/profiletest"
)

// marshal is the Collector's own form of what Build makes, its fields in the order of their numbers.
func marshal(t testing.TB, pd pprofile.Profiles) []byte {
	t.Helper()
	b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(pd)
	if err != nil {
		t.Fatal(err)
	}
	var r cpb.ExportProfilesServiceRequest
	if err := proto.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(&r); err != nil {
		t.Fatal(err)
	}
	return b
}

func encode(t testing.TB, p *profile.Profile, opts otlp.Options, enc otlp.Encoding) []byte {
	t.Helper()
	b, err := otlp.Encode(p, opts, enc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pprofile's marshallers turn the attributes of what they are given into references.
func TestMarshalJSONLeavesTheDataAlone(t *testing.T) {
	pd := build(t, profiletest.Heap(), options())
	before := pprofile.NewProfiles()
	pd.CopyTo(before)
	if _, err := otlp.MarshalJSON(pd); err != nil {
		t.Fatal(err)
	}
	if v, ok := pd.ResourceProfiles().At(0).Resource().Attributes().Get("service.name"); !ok || v.Str() != "trainer" {
		t.Error("service.name is gone")
	}
	if pd.Dictionary().StringTable().Len() != before.Dictionary().StringTable().Len() {
		t.Error("the string table grew")
	}
	if pd.IsReadOnly() {
		t.Error("the data became read-only")
	}
}

// The canary of the test above: without the copy the data does change. Once this fails the copy can go.
func TestPprofileMarshallerStillChangesItsInput(t *testing.T) {
	pd := build(t, profiletest.Heap(), options())
	size := (&pprofile.ProtoMarshaler{}).ProfilesSize(pd)
	b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(pd)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := pd.ResourceProfiles().At(0).Resource().Attributes().Get("service.name"); ok {
		t.Error("service.name is still there")
	}
	if size == len(b) {
		t.Error("ProfilesSize tells the marshalled length: it can serve for limits now")
	}
}

// everyKind has a resource attribute of every kind of value.
func everyKind() otlp.Options {
	opts := options()
	opts.Resource["list"] = []any{"a", int64(-1), map[string]any{"k": "v", "": "no key"}, []any{}, nil}
	opts.Resource["map"] = map[string]any{"text": "service.name", "empty": "", "inner": map[string]any{}}
	opts.Resource["bytes"] = []byte{0, 1, 255}
	opts.Resource["none"], opts.Resource["yes"], opts.Resource["no"], opts.Resource["ratio"], opts.Resource["zero"] = nil, true, false, -0.5, int64(0)
	return opts
}

// What Encode writes is what the Collector's own libraries write of what Build makes, but for the order of fields.
func TestEncodeIsWhatTheCollectorWrites(t *testing.T) {
	check := func(name string, p *profile.Profile, opts otlp.Options) {
		t.Helper()
		pd := build(t, p, opts)
		if otlp.Empty(pd) {
			return
		}
		got, want := encode(t, p, opts, otlp.Reference), marshal(t, pd)
		if !bytes.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("%s: %d bytes, want %d; they differ from byte %d on", name, len(got), len(want), at)
		}
	}
	check("heap", profiletest.Heap(), options())
	check("every kind of attribute", profiletest.Heap(), everyKind())
	check("nothing but the profile", profiletest.Heap(), otlp.Options{})
	for _, s := range shapes {
		check(s.name, profiletest.Generate(s.Shape), options())
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		check(fmt.Sprint("random ", n), random(rng), everyKind())
	}
}

// random is a profile of everything that may be in one, with numbers of every length.
func random(rng *rand.Rand) *profile.Profile {
	number := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	word := func() string { return strings.Repeat("ä", rng.IntN(3)) + fmt.Sprint(rng.IntN(20)) }
	b := profiletest.New(profiletest.Inuse...)
	b.Comments = make([]string, rng.IntN(3))
	b.Period, b.TimeNanos, b.DurationNanos = rng.Int64N(3), int64(number()>>1), int64(number()>>1)
	mappings := []*profile.Mapping{nil}
	for range rng.IntN(4) {
		m := b.Mapping(number(), number(), word(), []string{"", "abcdef", "no hex"}[rng.IntN(3)])
		m.Offset = number()
		mappings = append(mappings, m)
	}
	var functions []*profile.Function
	for range 1 + rng.IntN(200) {
		functions = append(functions, b.Func(word(), word(), word(), int64(number())))
	}
	var locations []*profile.Location
	for range 1 + rng.IntN(400) {
		var lines []profile.Line
		for range rng.IntN(3) {
			lines = append(lines, profile.Line{Function: functions[rng.IntN(len(functions))], Line: int64(number()), Column: int64(number())})
		}
		if len(lines) == 1 && rng.IntN(2) == 0 {
			locations = append(locations, b.Python(lines[0].Function, lines[0].Line))
		} else {
			locations = append(locations, b.Native(mappings[rng.IntN(len(mappings))], number(), lines...))
		}
	}
	for range rng.IntN(60) {
		var at []*profile.Location
		for range rng.IntN(5) * rng.IntN(20) {
			at = append(at, locations[rng.IntN(len(locations))])
		}
		s := b.Add([]int64{int64(number()) * int64(rng.IntN(2)), int64(number())}, at...)
		if rng.IntN(3) == 0 {
			s.Label = map[string][]string{"thread_name": {word()}, "several": {"a", word()}}
			s.NumLabel, s.NumUnit = map[string][]int64{"step": {int64(number())}, "sizes": {1, int64(number()), 0}, "none": {}}, map[string][]string{"step": {"bytes"}}
		}
	}
	return b.Profile
}

func TestThereIsNothingToEncode(t *testing.T) {
	nothing := profiletest.New(profiletest.Inuse...)
	nothing.Add([]int64{0, 0})
	if b, err := otlp.Encode(nothing.Profile, options(), otlp.Reference); b != nil || err != nil {
		t.Errorf("nothing live: %d bytes, %v", len(b), err)
	}
	if _, err := otlp.Encode(&profile.Profile{}, options(), otlp.Reference); err == nil {
		t.Error("no sample type: no error")
	}
}

func TestBothEncodingsReadBackEqual(t *testing.T) {
	for _, enc := range []otlp.Encoding{otlp.Reference, otlp.Inline} {
		back, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(encode(t, profiletest.Heap(), everyKind(), enc))
		if err != nil {
			t.Fatal(err)
		}
		if err := otlp.Check(back); err != nil {
			t.Error(err)
		}
		want := build(t, profiletest.Heap(), everyKind()).ResourceProfiles().At(0).Resource().Attributes()
		if got := back.ResourceProfiles().At(0).Resource().Attributes(); !got.Equal(want) {
			t.Errorf("encoding %d: resource %v", enc, got.AsRaw())
		}
		v := read(back)
		if got := v.sum(0); got != 537396202 {
			t.Errorf("encoding %d: %d bytes", enc, got)
		}
	}
}

// Pyroscope up to 2.2.1 looks at Key and StringValue only.
func TestInlineEncodingHasKeysAndTextsInPlace(t *testing.T) {
	opts := options()
	opts.Resource["list"] = []any{"a", int64(1), map[string]any{"k": "v"}}
	for enc, inline := range map[otlp.Encoding]bool{otlp.Reference: false, otlp.Inline: true} {
		b := encode(t, profiletest.Heap(), opts, enc)
		var r cpb.ExportProfilesServiceRequest
		if err := proto.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		texts, references := 0, 0
		var walk func([]*common.KeyValue)
		var value func(*common.AnyValue)
		value = func(v *common.AnyValue) {
			switch x := v.GetValue().(type) {
			case *common.AnyValue_StringValue:
				texts++
			case *common.AnyValue_StringValueStrindex:
				references++
			case *common.AnyValue_ArrayValue:
				for _, e := range x.ArrayValue.Values {
					value(e)
				}
			case *common.AnyValue_KvlistValue:
				walk(x.KvlistValue.Values)
			}
		}
		walk = func(kvs []*common.KeyValue) {
			for _, kv := range kvs {
				if (kv.Key != "") != inline || (kv.KeyStrindex == 0) != inline {
					t.Errorf("encoding %d: key %q, index %d", enc, kv.Key, kv.KeyStrindex)
				}
				value(kv.Value)
			}
		}
		walk(r.ResourceProfiles[0].Resource.Attributes)
		if inline && (references != 0 || texts != 6) || !inline && (texts != 0 || references != 6) {
			t.Errorf("encoding %d: %d texts in place and %d references, of 6", enc, texts, references)
		}
	}
}

// Only resource and scope attributes become references; those of the table keep their values in place, in both encodings.
func TestValuesOfTheAttributeTableStayInPlace(t *testing.T) {
	for _, enc := range []otlp.Encoding{otlp.Reference, otlp.Inline} {
		b := encode(t, profiletest.Heap(), options(), enc)
		var r cpb.ExportProfilesServiceRequest
		if err := proto.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, a := range r.Dictionary.AttributeTable[1:] {
			got[r.Dictionary.StringTable[a.KeyStrindex]+"="+a.Value.GetStringValue()] = true
		}
		for _, want := range []string{"memory_kind=host", "profile.frame.type=cpython", "device=cuda:0"} {
			if !got[want] {
				t.Errorf("encoding %d: no %s among %v", enc, want, got)
			}
		}
	}
}

func TestParseEncoding(t *testing.T) {
	for s, want := range map[string]otlp.Encoding{"": otlp.Reference, "reference": otlp.Reference, "inline": otlp.Inline} {
		if got, err := otlp.ParseEncoding(s); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	if _, err := otlp.ParseEncoding("zip"); err == nil {
		t.Error("no error for zip")
	}
}

func TestParseResponse(t *testing.T) {
	if r, err := otlp.ParseResponse([]byte("\n\x00"), false); err != nil || r != (otlp.Response{}) {
		t.Errorf("success: %v, %v", r, err)
	}
	if r, err := otlp.ParseResponse([]byte(`{"partialSuccess":{"rejectedProfiles":"2","errorMessage":"full"}}`), true); err != nil || r != (otlp.Response{Rejected: 2, Message: "full"}) {
		t.Errorf("partial: %v, %v", r, err)
	}
	for _, body := range []string{"<html>", "\xff\xff"} {
		if _, err := otlp.ParseResponse([]byte(body), false); err == nil {
			t.Errorf("%q: no error", body)
		}
	}
}

func TestCheckFindsFaults(t *testing.T) {
	f := func(name, want string, spoil func(pprofile.Profiles)) {
		t.Helper()
		pd := build(t, profiletest.Heap(), options())
		spoil(pd)
		if err := otlp.Check(pd); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	first := func(pd pprofile.Profiles) pprofile.Profile {
		return pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
	}
	f("no dictionary", "the stack table has no zero row", func(pd pprofile.Profiles) { pprofile.NewProfilesDictionary().MoveTo(pd.Dictionary()) })
	f("row 0", "row 0 of the function table is not zero", func(pd pprofile.Profiles) { pd.Dictionary().FunctionTable().At(0).SetStartLine(1) })
	f("mapping", "mapping index 99", func(pd pprofile.Profiles) { pd.Dictionary().LocationTable().At(1).SetMappingIndex(99) })
	f("mapping file", "filename index 9999", func(pd pprofile.Profiles) { pd.Dictionary().MappingTable().At(1).SetFilenameStrindex(9999) })
	f("function", "function index -1", func(pd pprofile.Profiles) { pd.Dictionary().LocationTable().At(1).Lines().At(0).SetFunctionIndex(-1) })
	f("name", "name index 9999", func(pd pprofile.Profiles) { pd.Dictionary().FunctionTable().At(1).SetNameStrindex(9999) })
	f("location", "location index 77", func(pd pprofile.Profiles) { pd.Dictionary().StackTable().At(1).LocationIndices().Append(77) })
	f("stack", "stack index 500", func(pd pprofile.Profiles) { first(pd).Samples().At(0).SetStackIndex(500) })
	f("link", "link index 3", func(pd pprofile.Profiles) { first(pd).Samples().At(0).SetLinkIndex(3) })
	f("attribute", "attribute index 88", func(pd pprofile.Profiles) { first(pd).AttributeIndices().Append(88) })
	f("key", "key index 9999", func(pd pprofile.Profiles) { pd.Dictionary().AttributeTable().At(1).SetKeyStrindex(9999) })
	f("sample type", "sample type index 9999", func(pd pprofile.Profiles) { first(pd).SampleType().SetTypeStrindex(9999) })
	f("values", "2 values", func(pd pprofile.Profiles) { first(pd).Samples().At(0).Values().Append(1) })
	f("timestamps", "1 timestamps", func(pd pprofile.Profiles) { first(pd).Samples().At(0).TimestampsUnixNano().Append(1) })
}

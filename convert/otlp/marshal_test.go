// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"bytes"
	"maps"
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

// pprofile's marshallers turn the attributes of what they are given into references.
func TestMarshalLeavesTheDataAlone(t *testing.T) {
	pd := build(t, profiletest.Heap(), options())
	before := pprofile.NewProfiles()
	pd.CopyTo(before)
	for name, marshal := range map[string]func() ([]byte, error){
		"reference": func() ([]byte, error) { return otlp.MarshalProto(pd, otlp.Reference) },
		"inline":    func() ([]byte, error) { return otlp.MarshalProto(pd, otlp.Inline) },
		"json":      func() ([]byte, error) { return otlp.MarshalJSON(pd) },
	} {
		if _, err := marshal(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if v, ok := pd.ResourceProfiles().At(0).Resource().Attributes().Get("service.name"); !ok || v.Str() != "trainer" {
			t.Errorf("%s: service.name is gone", name)
		}
		if pd.Dictionary().StringTable().Len() != before.Dictionary().StringTable().Len() {
			t.Errorf("%s: the string table grew", name)
		}
		if pd.IsReadOnly() {
			t.Errorf("%s: the data became read-only", name)
		}
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

func TestBothEncodingsReadBackEqual(t *testing.T) {
	pd := build(t, profiletest.Heap(), options())
	for _, enc := range []otlp.Encoding{otlp.Reference, otlp.Inline} {
		b, err := otlp.MarshalProto(pd, enc)
		if err != nil {
			t.Fatal(err)
		}
		back, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := otlp.Check(back); err != nil {
			t.Error(err)
		}
		if got := back.ResourceProfiles().At(0).Resource().Attributes().AsRaw(); !maps.Equal(got, options().Resource) {
			t.Errorf("encoding %d: resource %v", enc, got)
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
		b, err := otlp.MarshalProto(build(t, profiletest.Heap(), opts), enc)
		if err != nil {
			t.Fatal(err)
		}
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

func TestEncodeIsBuildAndMarshal(t *testing.T) {
	for _, enc := range []otlp.Encoding{otlp.Reference, otlp.Inline} {
		want, err := otlp.MarshalProto(build(t, profiletest.Heap(), options()), enc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := otlp.Encode(profiletest.Heap(), options(), enc)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("encoding %d: %d bytes, want %d; %v", enc, len(got), len(want), err)
		}
	}
	nothing := profiletest.New(profiletest.Inuse...)
	nothing.Add([]int64{0, 0})
	if b, err := otlp.Encode(nothing.Profile, options(), otlp.Reference); b != nil || err != nil {
		t.Errorf("nothing live: %d bytes, %v", len(b), err)
	}
	if _, err := otlp.Encode(&profile.Profile{}, options(), otlp.Reference); err == nil {
		t.Error("no sample type: no error")
	}
}

// Only resource and scope attributes become references; those of the table keep their values in place, in both encodings.
func TestValuesOfTheAttributeTableStayInPlace(t *testing.T) {
	for _, enc := range []otlp.Encoding{otlp.Reference, otlp.Inline} {
		b, err := otlp.MarshalProto(build(t, profiletest.Heap(), options()), enc)
		if err != nil {
			t.Fatal(err)
		}
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

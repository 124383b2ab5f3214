// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"
	cpb "go.opentelemetry.io/proto/slim/otlp/collector/profiles/v1development"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// MaxRequestBytes is the most an OTLP client may send in one request, before and after compression
// (https://opentelemetry.io/docs/specs/otlp/).
const MaxRequestBytes = 64 << 20

// Encoding says how the strings of resource and scope attributes are written.
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

// Encode is Build and MarshalProto in one, without the copy that MarshalProto makes for its caller's sake. It is nil if
// there is nothing to send; see [Empty].
func Encode(p *profile.Profile, opts Options, enc Encoding) ([]byte, error) {
	pd, err := Build(p, opts)
	if err != nil || Empty(pd) {
		return nil, err
	}
	return marshal(pd, enc)
}

// MarshalProto gives the bytes of an ExportProfilesServiceRequest. pd stays as it is.
func MarshalProto(pd pprofile.Profiles, enc Encoding) ([]byte, error) {
	return marshal(clone(pd), enc)
}

// marshal spoils pd.
func marshal(pd pprofile.Profiles, enc Encoding) ([]byte, error) {
	b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(pd)
	if err != nil {
		return nil, fmt.Errorf("encoding OTLP profiles: %w", err)
	}
	if enc == Reference {
		return b, nil
	}
	b, err = inline(b)
	if err != nil {
		return nil, fmt.Errorf("encoding OTLP profiles with inline attributes: %w", err)
	}
	return b, nil
}

// MarshalJSON gives the OTLP/JSON form of the same request. pd stays as it is.
func MarshalJSON(pd pprofile.Profiles) ([]byte, error) {
	b, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(clone(pd))
	if err != nil {
		return nil, fmt.Errorf("encoding OTLP profiles as JSON: %w", err)
	}
	return b, nil
}

// clone guards the caller's data: pprofile's marshallers turn the attributes of mutable data into references, after which
// Resource().Attributes().Get finds nothing.
func clone(pd pprofile.Profiles) pprofile.Profiles {
	c := pprofile.NewProfiles()
	pd.CopyTo(c)
	return c
}

// inline rewrites an encoded request: pprofile has no way to leave the references out.
func inline(b []byte) ([]byte, error) {
	var r cpb.ExportProfilesServiceRequest
	if err := proto.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	strings := r.GetDictionary().GetStringTable()
	for _, rp := range r.ResourceProfiles {
		if err := inlineAttributes(strings, rp.GetResource().GetAttributes()); err != nil {
			return nil, err
		}
		for _, sp := range rp.ScopeProfiles {
			if err := inlineAttributes(strings, sp.GetScope().GetAttributes()); err != nil {
				return nil, err
			}
		}
	}
	return proto.Marshal(&r)
}

func inlineAttributes(strings []string, attrs []*common.KeyValue) error {
	for _, kv := range attrs {
		if kv.KeyStrindex != 0 {
			key, err := lookup(strings, kv.KeyStrindex)
			if err != nil {
				return err
			}
			kv.Key, kv.KeyStrindex = key, 0
		}
		if err := inlineValue(strings, kv.Value); err != nil {
			return err
		}
	}
	return nil
}

func inlineValue(strings []string, v *common.AnyValue) error {
	switch x := v.GetValue().(type) {
	case *common.AnyValue_StringValueStrindex:
		s, err := lookup(strings, x.StringValueStrindex)
		if err != nil {
			return err
		}
		v.Value = &common.AnyValue_StringValue{StringValue: s}
	case *common.AnyValue_KvlistValue:
		return inlineAttributes(strings, x.KvlistValue.GetValues())
	case *common.AnyValue_ArrayValue:
		for _, e := range x.ArrayValue.GetValues() {
			if err := inlineValue(strings, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func lookup(strings []string, i int32) (string, error) {
	if i < 0 || int(i) >= len(strings) {
		return "", fmt.Errorf("string index %d outside of the table of %d", i, len(strings))
	}
	return strings[i], nil
}

// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/otlp/profiletest"
)

var update = flag.Bool("update", false, "Update the golden files")

func options() otlp.Options {
	return otlp.Options{
		Resource: map[string]any{
			"service.name": "trainer", "process.pid": int64(4242), "process.executable.name": "python3.11",
			"host.name": "node7", "heapwire.rank": int64(3), "team": "rl",
		},
		ScopeVersion: "0.1.0",
		Attributes:   map[string]string{"memory_kind": "host", "reason": "interval", "view": "live", "device": ""},
		ProfileID:    [16]byte{0xde, 0xad, 15: 1},
		Time:         profiletest.When.Add(time.Hour),
		Duration:     30 * time.Second,
	}
}

func build(t testing.TB, p *profile.Profile, opts otlp.Options) pprofile.Profiles {
	t.Helper()
	pd, err := otlp.Build(p, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := otlp.Check(pd); err != nil {
		t.Fatalf("Build made what Check refuses: %v", err)
	}
	return pd
}

// view is an independent reading of pprofile data, for comparisons.
type view struct {
	pprofile.ProfilesDictionary
	profiles []pprofile.Profile
}

func read(pd pprofile.Profiles) view {
	v := view{ProfilesDictionary: pd.Dictionary()}
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				v.profiles = append(v.profiles, p)
			}
		}
	}
	return v
}

func (v view) str(i int32) string { return v.StringTable().At(int(i)) }

func (v view) types() []string {
	var out []string
	for _, p := range v.profiles {
		out = append(out, v.str(p.SampleType().TypeStrindex())+"/"+v.str(p.SampleType().UnitStrindex()))
	}
	return out
}

func (v view) attributes(indices []int32) map[string]any {
	out := map[string]any{}
	for _, i := range indices {
		a := v.AttributeTable().At(int(i))
		key := v.str(a.KeyStrindex())
		if unit := v.str(a.UnitStrindex()); unit != "" {
			key += " [" + unit + "]"
		}
		out[key] = a.Value().AsRaw()
	}
	return out
}

func (v view) sum(profile int) int64 {
	var n int64
	for _, s := range v.profiles[profile].Samples().All() {
		n += s.Values().At(0)
	}
	return n
}

func TestOneProfilePerSampleTypeInUseSpaceFirst(t *testing.T) {
	v := read(build(t, profiletest.Heap(), options()))
	want := []string{"inuse_space/bytes", "inuse_objects/count", "alloc_space/bytes", "alloc_objects/count"}
	if got := v.types(); !slices.Equal(got, want) {
		t.Fatalf("sample types %v, want %v", got, want)
	}
	for i, want := range []int64{537396202, 1037, 1<<30 + 3000 + 700 + 400 + 2, 2048 + 30 + 7 + 4 + 2} {
		if got := v.sum(i); got != want {
			t.Errorf("%s: sum %d, want %d", v.types()[i], got, want)
		}
	}
}

func TestDictionaryHasZeroRowsNoDuplicatesNoOrphans(t *testing.T) {
	pd := build(t, profiletest.Heap(), options())
	d := pd.Dictionary()
	used := map[string]map[int32]bool{"string": {0: true}, "mapping": {0: true}, "location": {0: true}, "function": {0: true}, "attribute": {0: true}, "stack": {0: true}}
	mark := func(table string, i int32) { used[table][i] = true }
	attributes := func(indices []int32) {
		for _, i := range indices {
			mark("attribute", i)
			mark("string", d.AttributeTable().At(int(i)).KeyStrindex())
			mark("string", d.AttributeTable().At(int(i)).UnitStrindex())
		}
	}
	for _, p := range read(pd).profiles {
		for _, i := range []int32{p.SampleType().TypeStrindex(), p.SampleType().UnitStrindex(), p.PeriodType().TypeStrindex(), p.PeriodType().UnitStrindex()} {
			mark("string", i)
		}
		attributes(p.AttributeIndices().AsRaw())
		for _, s := range p.Samples().All() {
			attributes(s.AttributeIndices().AsRaw())
			mark("stack", s.StackIndex())
			for _, li := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
				mark("location", li)
				l := d.LocationTable().At(int(li))
				attributes(l.AttributeIndices().AsRaw())
				mark("mapping", l.MappingIndex())
				m := d.MappingTable().At(int(l.MappingIndex()))
				mark("string", m.FilenameStrindex())
				attributes(m.AttributeIndices().AsRaw())
				for _, ln := range l.Lines().All() {
					mark("function", ln.FunctionIndex())
					f := d.FunctionTable().At(int(ln.FunctionIndex()))
					mark("string", f.NameStrindex())
					mark("string", f.SystemNameStrindex())
					mark("string", f.FilenameStrindex())
				}
			}
		}
	}
	lengths := map[string]int{
		"string": d.StringTable().Len(), "mapping": d.MappingTable().Len(), "location": d.LocationTable().Len(),
		"function": d.FunctionTable().Len(), "attribute": d.AttributeTable().Len(), "stack": d.StackTable().Len(),
	}
	for table, n := range lengths {
		if len(used[table]) != n {
			t.Errorf("%s table: %d of %d rows are referred to", table, len(used[table]), n)
		}
	}
	seen := map[string]bool{}
	for _, s := range d.StringTable().All() {
		if seen[s] {
			t.Errorf("string %q is there twice", s)
		}
		seen[s] = true
	}
	for i := range d.LocationTable().Len() {
		for j := range i {
			if d.LocationTable().At(i).Equal(d.LocationTable().At(j)) {
				t.Errorf("locations %d and %d are equal", i, j)
			}
		}
	}
	if got := d.LinkTable().At(0); got.TraceID() != [16]byte{} || got.SpanID() != [8]byte{} {
		t.Errorf("zero link is %v %v", got.TraceID(), got.SpanID())
	}
}

func TestPythonFramesHaveNoMappingAndNoAddress(t *testing.T) {
	v := read(build(t, profiletest.Heap(), options()))
	kinds := map[any]int{}
	for i, l := range v.LocationTable().All() {
		if i == 0 {
			continue
		}
		kind := v.attributes(l.AttributeIndices().AsRaw())["profile.frame.type"]
		kinds[kind]++
		switch kind {
		case "cpython":
			if l.MappingIndex() != 0 || l.Address() != 0 {
				t.Errorf("Python location %d has mapping %d and address %#x", i, l.MappingIndex(), l.Address())
			}
		case "native":
			if l.MappingIndex() == 0 || l.Address() == 0 {
				t.Errorf("native location %d has mapping %d and address %#x", i, l.MappingIndex(), l.Address())
			}
		}
	}
	if kinds["cpython"] != 3 || kinds["native"] != 2 || len(kinds) != 2 {
		t.Errorf("frame types %v, want 3 cpython and 2 native", kinds)
	}
	for _, s := range v.StringTable().All() {
		if s == "[python]" {
			t.Error("the mapping of Python frames is in the string table")
		}
	}
}

func TestMappingHasItsGNUBuildID(t *testing.T) {
	v := read(build(t, profiletest.Heap(), options()))
	got := map[string]any{}
	for _, m := range v.MappingTable().All() {
		if m.FilenameStrindex() != 0 {
			got[v.str(m.FilenameStrindex())] = v.attributes(m.AttributeIndices().AsRaw())["process.executable.build_id.gnu"]
		}
	}
	want := map[string]any{"/opt/torch/lib/libtorch_cpu.so": "600dcafe4a110000f2bf38c493f5fb92", "/app/leak.cpython-311-x86_64-linux-gnu.so": nil}
	if !maps.Equal(got, want) {
		t.Errorf("build ids %v, want %v", got, want)
	}
}

func TestInlinedLinesAreInnermostFirst(t *testing.T) {
	v := read(build(t, profiletest.Heap(), options()))
	var got []string
	for _, l := range v.LocationTable().All() {
		if l.Lines().Len() == 2 {
			for _, ln := range l.Lines().All() {
				got = append(got, v.str(v.FunctionTable().At(int(ln.FunctionIndex())).NameStrindex()))
			}
		}
	}
	if want := []string{"c10::alloc_cpu(unsigned long)", "at::empty_cpu()"}; !slices.Equal(got, want) {
		t.Errorf("inlined lines %q, want %q", got, want)
	}
}

func TestEqualStackAndAttributesAreOneSample(t *testing.T) {
	v := read(build(t, profiletest.Heap(), options()))
	type key struct {
		stack int32
		attrs string
	}
	for i, p := range v.profiles {
		seen := map[key]bool{}
		for _, s := range p.Samples().All() {
			b, _ := json.Marshal(s.AttributeIndices().AsRaw())
			k := key{s.StackIndex(), string(b)}
			if seen[k] {
				t.Errorf("%s: stack %d with attributes %s is there twice", v.types()[i], k.stack, k.attrs)
			}
			seen[k] = true
		}
	}
	if got := v.profiles[0].Samples().Len(); got != 4 {
		t.Errorf("%d samples of inuse_space, want 4: the equal two are one, the freed one is gone", got)
	}
	if got := v.profiles[2].Samples().Len(); got != 5 {
		t.Errorf("%d samples of alloc_space, want 5", got)
	}
}

func TestOrderOfSamplesInOneStackWithTwoLabelsStaysApart(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	at := b.Python(b.Func("f", "", "f.py", 1), 1)
	b.Add([]int64{1, 10}, at).Label = map[string][]string{"device": {"cuda:0"}}
	b.Add([]int64{1, 20}, at).Label = map[string][]string{"device": {"cuda:1"}}
	b.Add([]int64{1, 30}, at).Label = map[string][]string{"device": {"cuda:0"}}
	v := read(build(t, b.Profile, otlp.Options{}))
	got := map[any]int64{}
	for _, s := range v.profiles[0].Samples().All() {
		got[v.attributes(s.AttributeIndices().AsRaw())["device"]] = s.Values().At(0)
	}
	if want := (map[any]int64{"cuda:0": 40, "cuda:1": 20}); !maps.Equal(got, want) {
		t.Errorf("bytes by device %v, want %v", got, want)
	}
}

func TestLabelsBecomeAttributesWithUCUMUnits(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	s := b.Add([]int64{1, 10}, b.Python(b.Func("f", "", "f.py", 1), 1))
	s.Label = map[string][]string{"device": {"cuda:0"}, "memory_kind": {"host"}, "tags": {"a", "b"}, "both": {"x"}}
	s.NumLabel = map[string][]int64{"bytes": {4096}, "step": {7}, "age": {5}, "sizes": {1, 2}, "both": {9}}
	s.NumUnit = map[string][]string{"bytes": {"bytes"}, "age": {"milliseconds"}, "sizes": {"bytes", "bytes"}}
	opts := otlp.Options{Attributes: map[string]string{"memory_kind": "host"}}
	v := read(build(t, b.Profile, opts))
	row := v.profiles[0].Samples().At(0)
	got := v.attributes(row.AttributeIndices().AsRaw())
	want := map[string]any{
		"device": "cuda:0", "bytes [By]": int64(4096), "step": int64(7), "age [ms]": int64(5),
		"tags": []any{"a", "b"}, "sizes [By]": []any{int64(1), int64(2)}, "both": []any{"x", int64(9)},
	}
	gotJSON, _ := json.Marshal(got)
	wantJSON, _ := json.Marshal(want)
	if !bytes.Equal(gotJSON, wantJSON) {
		t.Errorf("attributes %s, want %s (memory_kind is the profile's and not repeated)", gotJSON, wantJSON)
	}
	keys := map[int32]bool{}
	for _, i := range row.AttributeIndices().AsRaw() {
		if k := v.AttributeTable().At(int(i)).KeyStrindex(); keys[k] {
			t.Errorf("key %q is in one sample twice", v.str(k))
		} else {
			keys[k] = true
		}
	}
}

// The semantic conventions forbid code.* in this signal: Function and Line say it.
func TestNoCodeAttributes(t *testing.T) {
	v := read(build(t, profiletest.Heap(), options()))
	for _, a := range v.AttributeTable().All() {
		if key := v.str(a.KeyStrindex()); strings.HasPrefix(key, "code.") {
			t.Errorf("attribute %s", key)
		}
	}
}

func TestProfileHeader(t *testing.T) {
	v := read(build(t, profiletest.Heap(), options()))
	ids := map[pprofile.ProfileID]bool{}
	for i, p := range v.profiles {
		if got := p.Time().AsTime(); !got.Equal(profiletest.When.Add(time.Hour)) {
			t.Errorf("time %v, want the dump's", got)
		}
		if got := p.DurationNano(); got != 30_000_000_000 {
			t.Errorf("duration %d ns", got)
		}
		if got := v.str(p.PeriodType().TypeStrindex()) + "/" + v.str(p.PeriodType().UnitStrindex()); got != "space/bytes" || p.Period() != 512<<10 {
			t.Errorf("period %d of %s", p.Period(), got)
		}
		if ids[p.ProfileID()] {
			t.Errorf("profile id %v is not unique", p.ProfileID())
		}
		ids[p.ProfileID()] = true
		attrs := v.attributes(p.AttributeIndices().AsRaw())
		if want := (map[string]any{"memory_kind": "host", "reason": "interval", "view": "live"}); !maps.Equal(attrs, want) {
			t.Errorf("profile %d: attributes %v, want %v", i, attrs, want)
		}
		if p.OriginalPayload().Len() != 0 || p.OriginalPayloadFormat() != "" {
			t.Error("there is an original payload")
		}
	}
	if got := v.profiles[0].ProfileID(); got != options().ProfileID {
		t.Errorf("id of the first profile %v, want the dump's", got)
	}
	again := read(build(t, profiletest.Heap(), options()))
	for i := range v.profiles {
		if v.profiles[i].ProfileID() != again.profiles[i].ProfileID() {
			t.Error("the same dump has another id the second time")
		}
	}
}

func TestPeriodIsNeverZero(t *testing.T) {
	p := profiletest.Heap()
	p.Period, p.PeriodType = 0, nil
	v := read(build(t, p, otlp.Options{}))
	for _, q := range v.profiles {
		if q.Period() == 0 || v.str(q.PeriodType().TypeStrindex()) != "space" || v.str(q.PeriodType().UnitStrindex()) != "bytes" {
			t.Errorf("period %d of %q", q.Period(), v.str(q.PeriodType().TypeStrindex()))
		}
		if q.Time().AsTime() != profiletest.When || q.DurationNano() != uint64(time.Minute) {
			t.Errorf("time %v and duration %d, want the pprof's own", q.Time().AsTime(), q.DurationNano())
		}
		if q.ProfileID() != (pprofile.ProfileID{}) {
			t.Errorf("an id from nowhere: %v", q.ProfileID())
		}
	}
}

func TestResourceAttributesKeepTheirTypes(t *testing.T) {
	pd := build(t, profiletest.Heap(), options())
	got := pd.ResourceProfiles().At(0).Resource().Attributes().AsRaw()
	if want := options().Resource; !maps.Equal(got, want) {
		t.Errorf("resource %v, want %v", got, want)
	}
	scope := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Scope()
	if scope.Name() != "github.com/heapwire/heapwire" || scope.Version() != "0.1.0" {
		t.Errorf("scope %s %s", scope.Name(), scope.Version())
	}
}

func TestBuildTwiceGivesTheSameBytes(t *testing.T) {
	p := profiletest.Generate(profiletest.Shape{Stacks: 200, Depth: 20, Functions: 300, Types: 4, Seed: 1})
	var first []byte
	for range 5 {
		b, err := otlp.Encode(p, options(), otlp.Reference)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		} else if !bytes.Equal(first, b) {
			t.Fatal("two builds of one profile differ")
		}
	}
}

func TestNothingLiveIsNoProfile(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	b.Add([]int64{0, 0}, b.Python(b.Func("f", "", "f.py", 1), 1))
	pd := build(t, b.Profile, options())
	if !otlp.Empty(pd) || len(read(pd).profiles) != 0 {
		t.Errorf("%d profiles with %d samples", len(read(pd).profiles), pd.SampleCount())
	}
	b.Add([]int64{0, 5}, b.Location[0])
	if got := read(build(t, b.Profile, options())).types(); !slices.Equal(got, []string{"inuse_space/bytes"}) {
		t.Errorf("profiles %v, want the one that has a sample", got)
	}
}

func TestIdsNeedNotCountFromOne(t *testing.T) {
	p := profiletest.Heap()
	want, err := otlp.Encode(p, options(), otlp.Reference)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range p.Location {
		l.ID = uint64(1)<<60 + uint64(i)
	}
	for i, f := range p.Function {
		f.ID = uint64(1000 * (len(p.Function) - i))
	}
	for _, m := range p.Mapping {
		m.ID += 1 << 40
	}
	got, err := otlp.Encode(p, options(), otlp.Reference)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("other ids in the pprof change the request")
	}
}

func TestEmptyStackIsRowZero(t *testing.T) {
	b := profiletest.New(profiletest.Inuse...)
	b.Add([]int64{1, 77})
	v := read(build(t, b.Profile, otlp.Options{}))
	if s := v.profiles[0].Samples().At(0); s.StackIndex() != 0 || s.Values().At(0) != 77 {
		t.Errorf("stack %d, value %d", s.StackIndex(), s.Values().At(0))
	}
	if v.StackTable().Len() != 1 {
		t.Errorf("%d stacks", v.StackTable().Len())
	}
}

func TestBuildRefusesWhatIsNoProfile(t *testing.T) {
	broken := profiletest.Heap()
	broken.Sample[0].Value = broken.Sample[0].Value[:1]
	for name, p := range map[string]*profile.Profile{"value missing": broken, "no sample type": {}} {
		if _, err := otlp.Build(p, otlp.Options{}); err == nil || !strings.Contains(err.Error(), "building OTLP profiles") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := otlp.Build(profiletest.Heap(), otlp.Options{Resource: map[string]any{"x": struct{}{}}}); err == nil {
		t.Error("a resource attribute of a strange type: no error")
	}
}

func TestBuildLeavesThePprofAlone(t *testing.T) {
	p := profiletest.Heap()
	before := p.String()
	build(t, p, options())
	if p.String() != before {
		t.Error("Build changed its input")
	}
}

func TestGolden(t *testing.T) {
	b, err := otlp.MarshalJSON(build(t, profiletest.Heap(), options()))
	if err != nil {
		t.Fatal(err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, b, "", " "); err != nil {
		t.Fatal(err)
	}
	pretty.WriteByte('\n')
	name := filepath.Join("testdata", "heap.otlp.json")
	if *update {
		if err := os.WriteFile(name, pretty.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pretty.Bytes(), want) {
		t.Errorf("%s differs; look at the difference, then run with -update\n%s", name, pretty.Bytes())
	}
	back, err := (&pprofile.JSONUnmarshaler{DisallowUnknownFields: true}).UnmarshalProfiles(want)
	if err != nil {
		t.Fatalf("the golden does not read back: %v", err)
	}
	if err := otlp.Check(back); err != nil {
		t.Errorf("the golden: %v", err)
	}
}

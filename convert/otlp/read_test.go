// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/otlp/profiletest"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/torchmem"
)

// contents says all that a profile says, whatever the order and the ids of its parts: a line a stack, mapping, address,
// build id, inlined lines and labels in it, then its values. What Build is to leave out, it leaves out too.
func contents(p *profile.Profile) map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	for _, s := range p.Sample {
		var b strings.Builder
		for _, l := range s.Location {
			if m := l.Mapping; m != nil && !stack.IsPython(l) {
				fmt.Fprintf(&b, "%x-%x@%x %s %s ", m.Start, m.Limit, m.Offset, m.File, m.BuildID)
			} else if m != nil {
				b.WriteString("python ")
			}
			fmt.Fprintf(&b, "%#x", l.Address)
			for _, ln := range l.Line {
				f := ln.Function
				if f == nil {
					f = &profile.Function{}
				}
				fmt.Fprintf(&b, " | %s %s %s:%d (%d:%d)", f.Name, cmp.Or(f.SystemName, f.Name), f.Filename, f.StartLine, ln.Line, ln.Column)
			}
			b.WriteByte('\n')
		}
		for _, k := range slices.Sorted(maps.Keys(s.Label)) {
			fmt.Fprintf(&b, "%s=%q\n", k, s.Label[k])
		}
		for _, k := range slices.Sorted(maps.Keys(s.NumLabel)) {
			fmt.Fprintf(&b, "%s=%d %q\n", k, s.NumLabel[k], s.NumUnit[k])
		}
		for i, v := range s.Value {
			if v == 0 {
				continue
			}
			if out[b.String()] == nil {
				out[b.String()] = map[string]int64{}
			}
			out[b.String()][p.SampleType[i].Type+"/"+p.SampleType[i].Unit] += v
		}
	}
	return out
}

func same(t *testing.T, name string, p *profile.Profile) {
	t.Helper()
	before := p.String()
	read, lost := otlp.Read(build(t, p, otlp.Options{}))
	if lost.Total() != 0 || lost.Labels != 0 {
		t.Fatalf("%s: lost %+v", name, lost)
	}
	want := contents(p)
	if len(want) == 0 {
		if len(read) != 0 {
			t.Errorf("%s: %d profiles of nothing", name, len(read))
		}
		return
	}
	if len(read) != 1 {
		t.Fatalf("%s: %d profiles, want 1", name, len(read))
	}
	got := read[0].Profile
	if err := got.CheckValid(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if !maps.EqualFunc(contents(got), want, func(a, b map[string]int64) bool { return maps.Equal(a, b) }) {
		for k, v := range want {
			if !maps.Equal(contents(got)[k], v) {
				t.Fatalf("%s: %d stacks, want %d; of\n%s\nwant %v, got %v", name, len(contents(got)), len(want), k, v, contents(got)[k])
			}
		}
		t.Fatalf("%s: %d stacks, want %d", name, len(contents(got)), len(want))
	}
	if got.TimeNanos != p.TimeNanos || got.DurationNanos != p.DurationNanos || got.Period != max(p.Period, 1) || !slices.Equal(got.Comments, p.Comments) {
		t.Errorf("%s: header %d %d %d %q", name, got.TimeNanos, got.DurationNanos, got.Period, got.Comments)
	}
	// And through bytes, as a server gets it.
	var raw bytes.Buffer
	if err := got.Write(&raw); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	parsed, err := profile.ParseData(raw.Bytes())
	if err != nil || len(contents(parsed)) != len(want) {
		t.Errorf("%s: parsed again: %v, %d stacks", name, err, len(contents(parsed)))
	}
	if p.String() != before {
		t.Errorf("%s: the original was changed", name)
	}
}

func TestThereAndBackAgainLosesNothing(t *testing.T) {
	same(t, "heap", profiletest.Heap())
	for i, shape := range []profiletest.Shape{
		{Stacks: 1, Depth: 1, Functions: 1, Types: 2}, {Stacks: 500, Depth: 40, Functions: 300, Types: 4, Seed: 3}, {Stacks: 3000, Depth: 12, Functions: 40, Types: 2, Seed: 4},
	} {
		same(t, fmt.Sprint("shape ", i), profiletest.Generate(shape))
	}
	labels := profiletest.New(profiletest.Inuse...)
	s := labels.Add([]int64{-1, 1 << 62})
	s.Label = map[string][]string{"a": {"x", "y"}, "both": {"z"}}
	s.NumLabel = map[string][]int64{"n": {1, 2}, "both": {7}, "unitless": {5}}
	s.NumUnit = map[string][]string{"n": {"bytes", "bytes"}}
	labels.Comments = []string{"one", "two"}
	same(t, "labels", labels.Profile)
	same(t, "nothing", profiletest.New(profiletest.Inuse...).Profile)

	files, _ := filepath.Glob(filepath.Join("..", "jemalloc", "testdata", "*.heap"))
	if len(files) < 3 {
		t.Fatalf("fixtures of convert/jemalloc: %q", files)
	}
	data := os.Getenv("HEAPWIRE_TESTDATA")
	if data == "" {
		data = filepath.Join("..", "..", "..", "shared", "data")
	}
	corpus, _ := filepath.Glob(filepath.Join(data, "heapdumps", "*", "*.heap"))
	snapshots, _ := filepath.Glob(filepath.Join(data, "snapshots", "*.p*k*"))
	read := 0
	for _, name := range append(files, corpus...) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		h, err := convert.HeapDump(f, convert.Options{Name: name})
		f.Close()
		if err != nil {
			continue // not jemalloc's
		}
		read++
		same(t, filepath.Base(name), h.Profile)
	}
	for _, name := range snapshots {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := torchmem.Read(f, torchmem.Options{Name: name})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, view := range torchmem.Views {
			p, err := s.View(view, "")
			if err != nil {
				continue // not in this one
			}
			read++
			same(t, filepath.Base(name)+" "+view, p)
		}
	}
	t.Logf("%d profiles of files", read)
	if len(corpus) == 0 || len(snapshots) == 0 {
		t.Logf("no corpus in %s: set HEAPWIRE_TESTDATA to the folder that has heapdumps/ and snapshots/", data)
	}
}

func TestReadHasWhatBelongsToTheProfile(t *testing.T) {
	read, lost := otlp.Read(build(t, profiletest.Heap(), options()))
	if len(read) != 1 || lost.Total() != 0 {
		t.Fatalf("%d profiles, lost %+v", len(read), lost)
	}
	got := read[0]
	if want := map[string]string{"memory_kind": "host", "reason": "interval", "view": "live"}; !maps.Equal(got.Attributes, want) {
		t.Errorf("attributes %v, want %v", got.Attributes, want)
	}
	if got.ProfileID != options().ProfileID || !got.Time.Equal(options().Time) || got.Duration != options().Duration {
		t.Errorf("id %x, time %v, duration %v", got.ProfileID, got.Time, got.Duration)
	}
	if v, _ := got.Resource.Attributes().Get("service.name"); v.AsString() != "trainer" || got.Scope.Name() != otlp.ScopeName {
		t.Errorf("resource %v, scope %s", got.Resource.Attributes().AsRaw(), got.Scope.Name())
	}
	if want := []otlp.Place{{Profile: 0}, {Profile: 1}, {Profile: 2}, {Profile: 3}}; !slices.Equal(got.In, want) {
		t.Errorf("places %v", got.In)
	}
}

// Two dumps in one scope stay two profiles, whichever of their heads differs.
func TestProfilesThatDoNotBelongTogetherStayApart(t *testing.T) {
	f := func(name string, spoil func(pprofile.Profile)) {
		t.Helper()
		pd := build(t, profiletest.Heap(), options())
		all := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
		spoil(all.At(2))
		spoil(all.At(3))
		read, lost := otlp.Read(pd)
		if len(read) != 2 || lost.Total() != 0 || len(read[0].Profile.SampleType) != 2 || len(read[1].Profile.SampleType) != 2 {
			t.Errorf("%s: %d profiles, lost %+v", name, len(read), lost)
		}
	}
	f("time", func(p pprofile.Profile) { p.SetTime(p.Time() + 1) })
	f("duration", func(p pprofile.Profile) { p.SetDurationNano(p.DurationNano() + 1) })
	f("period", func(p pprofile.Profile) { p.SetPeriod(p.Period() + 1) })
	f("period type", func(p pprofile.Profile) { p.PeriodType().SetTypeStrindex(p.SampleType().UnitStrindex() * 0) })
	f("attributes", func(p pprofile.Profile) { p.AttributeIndices().FromRaw(p.AttributeIndices().AsRaw()[1:]) })
	pd := build(t, profiletest.Heap(), options())
	all := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
	all.At(0).CopyTo(all.AppendEmpty())
	if read, _ := otlp.Read(pd); len(read) != 2 {
		t.Errorf("the same sample type twice: %d profiles, want 2", len(read))
	}
}

// What profilers of CPU time send: timestamps instead of values, links to spans, frames of other interpreters.
func TestReadProfilesOfOtherProfilers(t *testing.T) {
	pd := pprofile.NewProfiles()
	d := pd.Dictionary()
	d.StringTable().FromRaw([]string{"", "samples", "count", "cpu", "nanoseconds", "profile.frame.type", "cpython", "jvm", "run", "a.py", "thread.name", "process.executable.build_id.htlhash", "abcd", "libx.so", "nested"})
	d.MappingTable().AppendEmpty()
	m := d.MappingTable().AppendEmpty()
	m.SetFilenameStrindex(13)
	m.AttributeIndices().Append(4)
	for i, v := range []string{"", "cpython", "jvm", "main", "htl"} {
		a := d.AttributeTable().AppendEmpty()
		a.SetKeyStrindex([]int32{0, 5, 5, 10, 11}[i])
		if v != "" {
			a.Value().SetStr(v)
		}
	}
	nested := d.AttributeTable().AppendEmpty()
	nested.SetKeyStrindex(14)
	nested.Value().SetEmptyMap().PutStr("k", "v")
	d.FunctionTable().AppendEmpty()
	d.FunctionTable().AppendEmpty().SetSystemNameStrindex(8)
	d.LocationTable().AppendEmpty()
	for i := range 3 {
		l := d.LocationTable().AppendEmpty()
		l.SetAddress(uint64(10 + i))
		switch i {
		case 2:
			l.SetMappingIndex(1)
		default:
			l.AttributeIndices().Append(int32(i + 1))
			l.Lines().AppendEmpty().SetFunctionIndex(1)
		}
	}
	d.LinkTable().AppendEmpty()
	link := d.LinkTable().AppendEmpty()
	link.SetTraceID(pcommon.TraceID{1})
	link.SetSpanID(pcommon.SpanID{2})
	d.StackTable().AppendEmpty()
	d.StackTable().AppendEmpty().LocationIndices().Append(1, 2, 3)
	p := pd.ResourceProfiles().AppendEmpty().ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	p.SampleType().SetTypeStrindex(1)
	p.SampleType().SetUnitStrindex(2)
	p.PeriodType().SetTypeStrindex(3)
	p.PeriodType().SetUnitStrindex(4)
	p.SetPeriod(50_000_000)
	p.SetTime(pcommon.NewTimestampFromTime(profiletest.When))
	for _, times := range [][]uint64{{5, 6, 7}, {8}} {
		s := p.Samples().AppendEmpty()
		s.SetStackIndex(1)
		s.SetLinkIndex(1)
		s.AttributeIndices().Append(3, 5)
		s.TimestampsUnixNano().Append(times...)
	}
	s := p.Samples().AppendEmpty()
	s.SetStackIndex(1)
	s.Values().Append(2, 3)
	s.TimestampsUnixNano().Append(1, 2)

	read, lost := otlp.Read(pd)
	if len(read) != 1 || lost.Total() != 0 || lost.Labels != 1 {
		t.Fatalf("%d profiles, lost %+v", len(read), lost)
	}
	got := read[0].Profile
	if err := got.CheckValid(); err != nil {
		t.Fatal(err)
	}
	if len(got.Sample) != 2 || got.Sample[0].Value[0] != 4 || got.Sample[1].Value[0] != 5 {
		t.Fatalf("samples %v", got.Sample)
	}
	want := map[string][]string{"thread.name": {"main"}, "trace_id": {"01000000000000000000000000000000"}, "span_id": {"0200000000000000"}}
	if !maps.EqualFunc(got.Sample[0].Label, want, slices.Equal[[]string]) {
		t.Errorf("labels %v, want %v", got.Sample[0].Label, want)
	}
	frames := got.Sample[0].Location
	if !stack.IsPython(frames[0]) || frames[0].Address != 0 || frames[0].Line[0].Function.Name != "run" {
		t.Errorf("Python frame %+v", frames[0])
	}
	if frames[1].Mapping != nil || frames[1].Address != 11 {
		t.Errorf("frame of another interpreter %+v", frames[1])
	}
	if frames[2].Mapping.File != "libx.so" || frames[2].Mapping.BuildID != "htl" || frames[2].Mapping.HasFunctions {
		t.Errorf("native frame %+v %+v", frames[2], frames[2].Mapping)
	}
	if got.PeriodType.Type != "cpu" || got.Period != 50_000_000 {
		t.Errorf("period %v %d", got.PeriodType, got.Period)
	}
}

func TestReadCountsWhatCannotBeFollowed(t *testing.T) {
	first := func(pd pprofile.Profiles) pprofile.Profile {
		return pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
	}
	whole, _ := otlp.Read(build(t, profiletest.Heap(), options()))
	total := len(whole[0].Profile.Sample)
	f := func(reason string, lostSamples int, says string, spoil func(pprofile.Profiles)) {
		t.Helper()
		pd := build(t, profiletest.Heap(), options())
		spoil(pd)
		read, lost := otlp.Read(pd)
		if lost.Samples[reason] != lostSamples || lost.Total() != lostSamples {
			t.Errorf("%s: lost %+v, want %d", says, lost, lostSamples)
		}
		if lost.First == nil || !strings.Contains(lost.First.Error(), says) {
			t.Errorf("error %v, want %q", lost.First, says)
		}
		for _, r := range read {
			if err := r.Profile.CheckValid(); err != nil {
				t.Errorf("%s: %v", says, err)
			}
		}
		if len(read) == 1 && len(read[0].Profile.Sample) > total {
			t.Errorf("%s: %d samples", says, len(read[0].Profile.Sample))
		}
	}
	f(otlp.LostIndex, 1, "stack index 500", func(pd pprofile.Profiles) { first(pd).Samples().At(0).SetStackIndex(500) })
	f(otlp.LostIndex, 1, "stack index -1", func(pd pprofile.Profiles) { first(pd).Samples().At(0).SetStackIndex(-1) })
	f(otlp.LostIndex, 1, "link index 3", func(pd pprofile.Profiles) { first(pd).Samples().At(0).SetLinkIndex(3) })
	f(otlp.LostIndex, 1, "attribute index -2", func(pd pprofile.Profiles) { first(pd).Samples().At(0).AttributeIndices().Append(-2) })
	f(otlp.LostIndex, 4, "location index 77", func(pd pprofile.Profiles) { pd.Dictionary().StackTable().At(1).LocationIndices().Append(77) })
	f(otlp.LostIndex, 8, "mapping index 99", func(pd pprofile.Profiles) { pd.Dictionary().LocationTable().At(1).SetMappingIndex(99) })
	f(otlp.LostIndex, 8, "function index -1", func(pd pprofile.Profiles) { pd.Dictionary().LocationTable().At(1).Lines().At(0).SetFunctionIndex(-1) })
	f(otlp.LostIndex, 8, "string index 9999", func(pd pprofile.Profiles) { pd.Dictionary().FunctionTable().At(1).SetNameStrindex(9999) })
	f(otlp.LostIndex, 8, "string index 9998", func(pd pprofile.Profiles) { pd.Dictionary().MappingTable().At(1).SetFilenameStrindex(9998) })
	f(otlp.LostType, first(build(t, profiletest.Heap(), options())).Samples().Len(), "its sample type", func(pd pprofile.Profiles) { first(pd).SampleType().SetTypeStrindex(9999) })
	f(otlp.LostValues, 1, "0 values and 0 timestamps", func(pd pprofile.Profiles) { first(pd).Samples().At(0).Values().FromRaw(nil) })
	f(otlp.LostValues, 1, "2 values and 3 timestamps", func(pd pprofile.Profiles) {
		first(pd).Samples().At(0).Values().Append(1)
		first(pd).Samples().At(0).TimestampsUnixNano().Append(1, 2, 3)
	})
	f(otlp.LostValues, 1, "sum is not within 64 bits", func(pd pprofile.Profiles) { first(pd).Samples().At(0).Values().Append(1<<63-1, 1) })
	f(otlp.LostValues, 1, "for the same stack", func(pd pprofile.Profiles) {
		s := first(pd).Samples().AppendEmpty()
		first(pd).Samples().At(0).CopyTo(s)
		s.Values().FromRaw([]int64{1<<63 - 1})
	})

	// Without a dictionary nothing has a name.
	pd := build(t, profiletest.Heap(), options())
	samples := pd.SampleCount()
	pprofile.NewProfilesDictionary().MoveTo(pd.Dictionary())
	if read, lost := otlp.Read(pd); len(read) != 0 || lost.Samples[otlp.LostType] != samples {
		t.Errorf("no dictionary: %d profiles, lost %+v", len(read), lost)
	}
}

// A request of some hundred kilobytes must not become gigabytes, or minutes.
func TestReadBoundsWhatSamplesShare(t *testing.T) {
	pd := build(t, profiletest.Heap(), options())
	d := pd.Dictionary()
	deep := d.StackTable().AppendEmpty()
	for range 50_000 {
		deep.LocationIndices().Append(1)
	}
	// One deep stack, each sample with another label.
	p := pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
	before := p.Samples().Len()
	const samples = 20_000
	for i := range samples {
		a := d.AttributeTable().AppendEmpty()
		a.SetKeyStrindex(1)
		a.Value().SetInt(int64(i))
		s := p.Samples().AppendEmpty()
		s.SetStackIndex(int32(d.StackTable().Len() - 1))
		s.AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
		s.Values().Append(1)
	}
	read, lost := otlp.Read(pd)
	kept := len(read[0].Profile.Sample)
	if lost.Samples[otlp.LostTooLarge] == 0 || kept < before {
		t.Errorf("%d samples kept, lost %+v", kept, lost)
	}
	// The same stack and labels again and again are one sample, however deep.
	pd = build(t, profiletest.Heap(), options())
	p = pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
	s := p.Samples().At(0)
	for range 1_000_000 {
		s.CopyTo(p.Samples().AppendEmpty())
		if p.Samples().Len() > 1_000_000 {
			break
		}
	}
	read, lost = otlp.Read(pd)
	if len(read) != 1 || lost.Total() != 0 || len(read[0].Profile.Sample) > 10 {
		t.Errorf("a million equal samples: %d profiles, lost %+v", len(read), lost)
	}
}

// FuzzRead: whatever the request, Read ends, does not panic, gives valid profiles, and says of each sample what became of it.
func FuzzRead(f *testing.F) {
	for _, p := range []*profile.Profile{profiletest.Heap(), profiletest.Generate(profiletest.Shape{Stacks: 5, Depth: 4, Functions: 6, Types: 4})} {
		b, err := otlp.Encode(p, options(), otlp.Reference)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		pd, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(data)
		if err != nil {
			return
		}
		samples := pd.SampleCount()
		read, lost := otlp.Read(pd)
		kept := 0
		for _, r := range read {
			if err := r.Profile.CheckValid(); err != nil {
				t.Fatalf("%v", err)
			}
			if err := r.Profile.Write(&bytes.Buffer{}); err != nil {
				t.Fatalf("%v", err)
			}
			kept += len(r.Profile.Sample)
		}
		if lost.Total() > samples || kept+lost.Total() == 0 && samples > 0 {
			t.Fatalf("%d samples: %d kept, lost %+v", samples, kept, lost)
		}
		if lost.Total() > 0 && lost.First == nil {
			t.Fatal("lost without a word")
		}
	})
}

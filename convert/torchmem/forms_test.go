// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

func write(t testing.TB, s *snapgen.Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func generate(t testing.TB, o snapgen.Options) (*snapgen.Snapshot, []byte) {
	t.Helper()
	s := snapgen.Generate(o)
	return s, write(t, s)
}

func read(t testing.TB, data []byte, opts torchmem.Options) *torchmem.Snapshot {
	t.Helper()
	s, err := torchmem.Read(bytes.NewReader(data), opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// named groups a profile by the generator's names of stacks.
func named(g *snapgen.Snapshot, p *profile.Profile) map[string]int64 {
	names := map[string]string{}
	for name, stack := range g.Names {
		names[stackText(g, stack)] = name
	}
	out := map[string]int64{}
	for _, s := range p.Sample {
		var lines []string
		for _, l := range s.Location {
			lines = append(lines, fmt.Sprintf("%s %d", l.Line[0].Function.Name, l.Line[0].Line))
		}
		text := strings.Join(lines, "\n")
		name, ok := names[text]
		switch {
		case ok:
		case text == torchmem.BeforeRecording+" 0":
			name = snapgen.Before
		case text == torchmem.NoPythonFrames+" 0":
			name = snapgen.None
		case text == torchmem.NoSegmentStack+" 0":
			name = snapgen.Before
		case lines[0] == torchmem.OOMRequest+" 0":
			name = "request"
		case strings.Contains(text, "variant "):
			name = "variant"
		default:
			name = text
		}
		out[name] += s.Value[1]
	}
	for k, v := range out {
		if v == 0 {
			delete(out, k)
		}
	}
	return out
}

func stackText(g *snapgen.Snapshot, stack int) string {
	var lines []string
	for _, f := range g.Stacks[stack] {
		lines = append(lines, fmt.Sprintf("%s %d", g.Frames[f].Name, g.Frames[f].Line))
	}
	return strings.Join(lines, "\n")
}

func checkTruth(t *testing.T, g *snapgen.Snapshot, s *torchmem.Snapshot) {
	t.Helper()
	want := g.Truth()
	i := slices.IndexFunc(s.Devices, func(d *torchmem.Device) bool { return d.Kind != "pinned" })
	if i < 0 {
		t.Fatalf("no device: %q", s.Report.Warnings())
	}
	d := s.Devices[i]
	equal := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	if d.Index != g.Options.Devices-1 && g.Options.Form != snapgen.FormList {
		t.Errorf("device %d, want %d", d.Index, g.Options.Devices-1)
	}
	equal("segments", d.Segments, want.Segments)
	equal("blocks", d.Blocks, want.Blocks)
	equal("reserved", d.Reserved, want.Reserved)
	equal("active", d.Active, want.Active)
	equal("requested", d.Requested, want.Requested)
	equal("inactive", d.Inactive, want.Inactive)
	equal("rounding", d.Rounding, want.Rounding)
	equal("pending", d.Pending, want.Pending)
	equal("workspace", d.Workspace, want.Workspace)
	equal("allocated", d.AllocBytes, want.AllocBytes)
	equal("allocations", d.AllocObjects, want.AllocObjects)
	equal("baseline", d.Baseline, want.Baseline)
	equal("peak", d.Peak, want.Peak)
	equal("peak index", d.PeakIndex, want.PeakIndex)
	equal("stale frees", d.StaleFrees, want.StaleFrees)
	equal("survivors", d.SurvivorBytes, want.Survivors)
	equal("missing", s.Report.Missing, int64(0))
	for name, want := range map[string]map[string]int64{
		"live": want.Live, "peak": want.AtPeak, "alloc": want.Alloc, "survivors": want.Surviving, "reserved": want.ReservedBy,
	} {
		if g.Options.Form == snapgen.Form20 && name == "reserved" {
			continue // segments have no stack there
		}
		if got := named(g, view(t, s, name, d.Name)); !maps.Equal(got, want) {
			t.Errorf("view %s: got %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]int64{
		"live": d.Requested, "reserved": d.Reserved, "inactive": d.Inactive, "holders": d.Inactive, "rounding": d.Rounding,
		"pending": d.Pending, "peak": d.Peak, "survivors": d.SurvivorBytes, "alloc": d.AllocBytes, "leak": d.Leak.Bytes,
	} {
		_, got := sum(view(t, s, name, d.Name))
		equal("total of "+name, got, want)
	}
	if g.Options.OOM && g.Options.Form != snapgen.FormList && len(want.OOMs) != 1 {
		t.Fatalf("the generator made %d out-of-memory errors, want 1", len(want.OOMs))
	}
	if len(d.OOMs) != len(want.OOMs) {
		t.Fatalf("got %d out-of-memory errors, want %d", len(d.OOMs), len(want.OOMs))
	}
	for i, w := range want.OOMs {
		o := d.OOMs[i]
		equal("oom index", o.Index, w.Index)
		equal("oom request", o.Requested, w.Requested)
		equal("oom free", o.Free, w.Free)
		equal("oom live", o.Live, w.Live)
		equal("oom reserved", o.Reserved, w.Reserved)
		if o.LargestHole >= w.Requested || o.LargestHole < 0 {
			t.Errorf("largest hole %d at the failure of %d", o.LargestHole, w.Requested)
		}
		p, err := s.OOMView(o)
		if err != nil {
			t.Fatal(err)
		}
		got := named(g, p)
		equal("request in the oom view", got["request"], w.Requested)
		delete(got, "request")
		if !maps.Equal(got, w.By) {
			t.Errorf("oom view: got %v, want %v", got, w.By)
		}
	}
	if err := s.WriteText(new(bytes.Buffer), "", 5); err != nil {
		t.Error(err)
	}
}

func TestEveryFormReadsAsItsTruth(t *testing.T) {
	for _, form := range snapgen.Forms {
		for name, o := range map[string]snapgen.Options{
			"plain":            {},
			"whole":            {Whole: true},
			"ring":             {Window: 300},
			"expandable":       {Expandable: true, EmptyCache: true},
			"empty cache":      {EmptyCache: true, PendingFrees: 3},
			"oom":              {OOM: true, Capacity: 2 << 30},
			"unwound":          {OOM: true, Unwind: true, Capacity: 2 << 30, Expandable: true},
			"unwound, ring":    {OOM: true, Unwind: true, Capacity: 2 << 30, Window: 140},
			"unwound, emptied": {OOM: true, Unwind: true, Capacity: 2 << 30, GiveBack: true},
			"pools":            {PrivatePools: true, Devices: 3},
			"first":            {TracesFirst: true, Window: 500},
			"cpp frames":       {CPP: true, Stacks: 60},
			"no context":       {NoContext: true},
			"high":             {HighAddress: true},
			"shuffled":         {ShuffleKeys: true, Leak: 3 << 20},
			"workspace":        {Workspaces: 2, Whole: true, TracesFirst: true},
			"protocol 2":       {Protocol: 2},
			"protocol 3":       {Protocol: 3, OOM: true, Capacity: 2 << 30},
			"protocol 5":       {Protocol: 5},
		} {
			if o.Workspaces > 0 && form != snapgen.FormNPU && form != snapgen.FormNPUMaster {
				continue
			}
			t.Run(form+"/"+name, func(t *testing.T) {
				o.Form, o.Seed = form, 3
				g, data := generate(t, o)
				s := read(t, data, torchmem.Options{AllFrames: true})
				checkTruth(t, g, s)
				if w := s.Report.Warnings(); len(w) > 0 {
					t.Errorf("warnings: %q", w)
				}
				if want := "cuda"; form == snapgen.FormNPU || form == snapgen.FormNPUMaster {
					if s.Devices[0].Kind != "npu" {
						t.Errorf("kind %s, want npu", s.Devices[0].Kind)
					}
				} else if s.Devices[0].Kind != want {
					t.Errorf("kind %s, want cuda", s.Devices[0].Kind)
				}
			})
		}
	}
}

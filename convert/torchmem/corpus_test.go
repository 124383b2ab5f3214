// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/torchmem"
)

// expected is what EXPECTED.json, made by a naive replay that is not ours, says about one device of a file.
type expected struct {
	Segments, Blocks                        int
	Reserved, Active, Requested             int64
	Inactive, Rounding, Pending             int64
	LiveStacks                              int `json:"live_stacks"`
	Events                                  int64
	Actions                                 map[string]int64
	AllocBytes                              int64 `json:"alloc_bytes"`
	AllocObjects                            int64 `json:"alloc_objects"`
	AllocStacks                             int   `json:"alloc_stacks"`
	Baseline, Peak                          int64
	StaleFrees                              int64 `json:"stale_frees"`
	SurvivorBytes                           int64 `json:"survivor_bytes"`
	SurvivorObjects                         int64 `json:"survivor_objects"`
	TopLive, TopAlloc, TopSurvivor, TopPeak []topStack
}

func (e *expected) UnmarshalJSON(text []byte) error {
	type plain expected
	var tops struct {
		TopLive     []topStack `json:"top_live"`
		TopAlloc    []topStack `json:"top_alloc"`
		TopSurvivor []topStack `json:"top_survivor"`
		TopPeak     []topStack `json:"top_peak"`
	}
	if err := json.Unmarshal(text, (*plain)(e)); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &tops); err != nil {
		return err
	}
	e.TopLive, e.TopAlloc, e.TopSurvivor, e.TopPeak = tops.TopLive, tops.TopAlloc, tops.TopSurvivor, tops.TopPeak
	return nil
}

// topStack is [bytes, [innermost frames]].
type topStack struct {
	bytes  int64
	frames []string
}

func (s *topStack) UnmarshalJSON(text []byte) error {
	parts := []any{&s.bytes, &s.frames}
	return json.Unmarshal(text, &parts)
}

func testdata(t testing.TB) string {
	dir := os.Getenv("HEAPWIRE_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, "snapshots")
	if _, err := os.Stat(filepath.Join(dir, "EXPECTED.json")); err != nil {
		t.Skipf("no corpus of memory snapshots at %s: set HEAPWIRE_TESTDATA to the folder that has snapshots/", dir)
	}
	return dir
}

func readFile(t testing.TB, path string, opts torchmem.Options) *torchmem.Snapshot {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	opts.Name = filepath.Base(path)
	s, err := torchmem.Read(f, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func view(t testing.TB, s *torchmem.Snapshot, name, device string) *profile.Profile {
	t.Helper()
	p, err := s.View(name, device)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckValid(); err != nil {
		t.Fatalf("view %s: %v", name, err)
	}
	return p
}

// sum adds up a profile: objects and bytes.
func sum(p *profile.Profile) (objects, bytes int64) {
	for _, s := range p.Sample {
		objects += s.Value[0]
		bytes += s.Value[1]
	}
	return objects, bytes
}

// byStack groups a profile by whole stacks, which read as the innermost three frames. Notes in place of a stack are one.
func byStack(p *profile.Profile) (map[string]int64, map[string]string) {
	sums, texts := map[string]int64{}, map[string]string{}
	for _, s := range p.Sample {
		var all []string
		for _, l := range s.Location {
			line := l.Line[0]
			if strings.HasPrefix(line.Function.Name, "[") && len(s.Location) == 1 {
				all = append(all, "[no frames]")
				continue
			}
			file := line.Function.Filename
			if file == "" {
				file = "??"
			}
			all = append(all, fmt.Sprintf("%s %s:%d", line.Function.Name, file, line.Line))
		}
		key := strings.Join(all, "\n")
		sums[key] += s.Value[1]
		texts[key] = strings.Join(all[:min(3, len(all))], "\n")
	}
	return sums, texts
}

func checkTop(t *testing.T, what string, p *profile.Profile, want []topStack) {
	t.Helper()
	sums, texts := byStack(p)
	keys := slices.Collect(maps.Keys(sums))
	sort.Slice(keys, func(i, j int) bool { return sums[keys[i]] > sums[keys[j]] })
	// Equal sums may come in any order.
	got, exp := map[string]int{}, map[string]int{}
	for i, w := range want {
		if i >= len(keys) {
			t.Errorf("%s: got %d stacks, want at least %d", what, len(keys), len(want))
			return
		}
		if sums[keys[i]] != w.bytes {
			t.Errorf("%s: stack %d holds %d, want %d", what, i, sums[keys[i]], w.bytes)
		}
		exp[fmt.Sprint(w.bytes, " ", strings.Join(w.frames, "\n"))]++
	}
	for _, k := range keys {
		got[fmt.Sprint(sums[k], " ", texts[k])]++
	}
	for k, n := range exp {
		if got[k] < n {
			t.Errorf("%s: no stack of %s", what, k)
		}
	}
}

func TestCorpusHasTheExpectedNumbers(t *testing.T) {
	dir := testdata(t)
	text, err := os.ReadFile(filepath.Join(dir, "EXPECTED.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]map[string]expected
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for name, devices := range all {
		t.Run(name, func(t *testing.T) {
			s := readFile(t, filepath.Join(dir, name), torchmem.Options{AllFrames: true})
			if len(s.Devices) != len(devices) {
				t.Errorf("got %d devices, want %d", len(s.Devices), len(devices))
			}
			kind := "cuda"
			if strings.HasPrefix(name, "npu") {
				kind = "npu"
			}
			for index, want := range devices {
				i := slices.IndexFunc(s.Devices, func(d *torchmem.Device) bool { return d.Name == kind+":"+index })
				if i < 0 {
					t.Fatalf("no device %s:%s", kind, index)
				}
				checkDevice(t, s, s.Devices[i], want)
			}
		})
	}
}

func checkDevice(t *testing.T, s *torchmem.Snapshot, d *torchmem.Device, want expected) {
	equal := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s: got %v, want %v", d.Name, what, got, want)
		}
	}
	equal("segments", d.Segments, want.Segments)
	equal("blocks", d.Blocks, want.Blocks)
	equal("reserved", d.Reserved, want.Reserved)
	equal("active", d.Active, want.Active)
	equal("requested", d.Requested, want.Requested)
	equal("inactive", d.Inactive, want.Inactive)
	equal("rounding", d.Rounding, want.Rounding)
	equal("pending", d.Pending, want.Pending)
	total := func(name string, want int64) {
		t.Helper()
		_, bytes := sum(view(t, s, name, d.Name))
		equal("view "+name, bytes, want)
	}
	total("live", want.Requested)
	total("reserved", want.Reserved)
	total("inactive", want.Inactive)
	total("holders", want.Inactive)
	total("rounding", want.Rounding)
	total("pending", want.Pending)
	live := view(t, s, "live", d.Name)
	stacks, _ := byStack(live)
	equal("live stacks", len(stacks), want.LiveStacks)
	checkTop(t, "live", live, want.TopLive)
	if want.Actions == nil { // without traces EXPECTED.json has no more
		return
	}
	equal("events", d.Events, want.Events)
	if !maps.Equal(d.Actions, want.Actions) {
		t.Errorf("actions: got %v, want %v", d.Actions, want.Actions)
	}
	equal("allocated bytes", d.AllocBytes, want.AllocBytes)
	equal("allocated objects", d.AllocObjects, want.AllocObjects)
	equal("baseline", d.Baseline, want.Baseline)
	equal("peak", d.Peak, want.Peak)
	equal("stale frees", d.StaleFrees, want.StaleFrees)
	equal("survivor bytes", d.SurvivorBytes, want.SurvivorBytes)
	equal("survivors", d.SurvivorNum, want.SurvivorObjects)
	total("alloc", want.AllocBytes)
	total("survivors", want.SurvivorBytes)
	total("peak", want.Peak)
	alloc := view(t, s, "alloc", d.Name)
	stacks, _ = byStack(alloc)
	equal("alloc stacks", len(stacks), want.AllocStacks)
	objects, _ := sum(alloc)
	equal("objects of alloc", objects, want.AllocObjects)
	checkTop(t, "alloc", alloc, want.TopAlloc)
	checkTop(t, "survivors", view(t, s, "survivors", d.Name), want.TopSurvivor)
	checkPeak(t, view(t, s, "peak", d.Name), want, d)
	if len(s.Report.Unknown) > 0 || s.Report.Truncated || s.Report.OddValues > 0 || s.Report.Missing > 0 {
		t.Errorf("warnings: %q", s.Report.Warnings())
	}
}

// checkPeak compares stacks that the window allocated. EXPECTED.json leaves out what was there before, and counts it by
// no stack; where the block still is there, the view has it under its own.
func checkPeak(t *testing.T, p *profile.Profile, want expected, d *torchmem.Device) {
	sums, texts := byStack(p)
	for _, w := range want.TopPeak {
		found := false
		text := strings.Join(w.frames, "\n")
		for k, v := range sums {
			switch {
			case texts[k] != text:
			case v == w.bytes:
				found = true
			case text == "[no frames]" && v >= w.bytes && v <= w.bytes+want.Baseline:
				found = true
			}
		}
		if !found {
			t.Errorf("%s: peak: no stack of %d bytes at %q", d.Name, w.bytes, w.frames)
		}
	}
}

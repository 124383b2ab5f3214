// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/jemalloc"
)

// expected is what EXPECTED.json, made by a program that is not ours, says about one dump of the corpus.
type expected struct {
	Refuse             string             `json:"refuse"`
	SampleBytes        int64              `json:"sample_bytes"`
	LinesBeforeHeader  int                `json:"lines_before_header"`
	ThreadNames        []string           `json:"thread_names"`
	Stacks             int                `json:"stacks"`
	DistinctStacks     int                `json:"distinct_stacks"`
	NothingLive        int                `json:"stacks_with_nothing_live"`
	EmptyStacks        int                `json:"empty_stacks"`
	DeepestStack       int                `json:"deepest_stack"`
	Estimate           map[string]float64 `json:"estimate"`
	Mode               string             `json:"mode_by_header"`
	EndsMidLine        bool               `json:"ends_mid_line"`
	HasMappings        bool               `json:"has_mappings"`
	DeletedFiles       []string           `json:"deleted_files"`
	UnmappedFrames     *int               `json:"unmapped_frames"`
	AllocatorLeaf      map[string]int     `json:"allocator_leaf_frames"`
	Top                []expectedStack    `json:"top"`
	HeaderAfterFormula map[string]float64 `json:"header_after_formula"`
}

type expectedStack struct {
	Bytes   float64  `json:"inuse_bytes"`
	Objects float64  `json:"inuse_objects"`
	Frames  []string `json:"frames_below_allocator"`
}

// findTestdata finds the shared corpus: $HEAPWIRE_TESTDATA, or the folder beside the repository.
func findTestdata() (dir string, ok bool) {
	dir = os.Getenv("HEAPWIRE_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, "heapdumps")
	_, err := os.Stat(filepath.Join(dir, "EXPECTED.json"))
	return dir, err == nil
}

func testdata(t testing.TB) string {
	dir, ok := findTestdata()
	if !ok {
		t.Skipf("no corpus of heap dumps at %s: set HEAPWIRE_TESTDATA to the folder that has heapdumps/", dir)
	}
	return dir
}

func corpus(t testing.TB) (string, map[string]expected) {
	dir := testdata(t)
	text, err := os.ReadFile(filepath.Join(dir, "EXPECTED.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]expected
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

func TestCorpusHasTheExpectedNumbers(t *testing.T) {
	dir, all := corpus(t)
	for name, want := range all {
		t.Run(name, func(t *testing.T) {
			file, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			dump, err := jemalloc.Parse(file, jemalloc.Options{Name: name})
			if want.Refuse != "" {
				if !errors.Is(err, jemalloc.ErrNotHeapV2) || dump != nil {
					t.Fatalf("got dump %v, error %v, want ErrNotHeapV2", dump, err)
				}
				if !strings.Contains(err.Error(), name) {
					t.Errorf("error does not name the file: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			check(t, dump, want)
		})
	}
}

func check(t *testing.T, dump *jemalloc.Dump, want expected) {
	r, p := dump.Report, dump.Profile
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	equal := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	equal("sample bytes", r.SampleBytes, want.SampleBytes)
	equal("period", p.Period, want.SampleBytes)
	equal("leading lines", r.LeadingLines, want.LinesBeforeHeader)
	equal("stacks", r.Stacks, want.Stacks)
	equal("samples", len(p.Sample), want.DistinctStacks)
	equal("stacks with nothing live", r.IdleStacks, want.NothingLive)
	equal("empty stacks", r.EmptyStacks, want.EmptyStacks)
	equal("mode", r.Mode, want.Mode)
	equal("truncated", r.Truncated, want.EndsMidLine || !want.HasMappings)
	equal("mappings", r.Mappings, want.HasMappings)
	equal("garbage lines", r.GarbageLines, 0)
	if want.UnmappedFrames != nil {
		equal("unmapped frames", r.UnmappedFrames, *want.UnmappedFrames)
	}
	deepest := 0
	for _, s := range p.Sample {
		deepest = max(deepest, len(s.Location))
	}
	equal("deepest stack", deepest, want.DeepestStack)
	for i, key := range []string{"alloc_objects", "alloc_bytes", "inuse_objects", "inuse_bytes"} {
		w := want.Estimate[key]
		// EXPECTED.json has three decimals.
		if math.Abs(r.Estimate[i]-w) > 0.001 {
			t.Errorf("estimate of %s: got %.3f, want %.3f", key, r.Estimate[i], w)
		}
		kind := strings.Replace(key, "_bytes", "_space", 1)
		column := slices.IndexFunc(p.SampleType, func(v *profile.ValueType) bool { return v.Type == kind })
		if column < 0 {
			if _, ok := want.Estimate[key]; ok {
				t.Errorf("no sample type %s", kind)
			}
			continue
		}
		var sum int64
		for _, s := range p.Sample {
			sum += s.Value[column]
		}
		if math.Abs(float64(sum)-w) > 0.5*float64(want.DistinctStacks) {
			t.Errorf("sum of %s: got %d, want %.3f within half a unit a stack", key, sum, w)
		}
	}
	for _, file := range want.DeletedFiles {
		if want.EndsMidLine {
			break
		}
		if !slices.ContainsFunc(p.Mapping, func(m *profile.Mapping) bool { return m.File == file+" (deleted)" }) {
			t.Errorf("no mapping of the deleted file %s", file)
		}
	}
	if len(want.AllocatorLeaf) > 0 && !want.EndsMidLine {
		got := map[string]int{}
		for _, s := range p.Sample {
			n := 0
			for n < len(s.Location) && strings.HasPrefix(filepath.Base(s.Location[n].Mapping.File), "libjemalloc") {
				n++
			}
			got[fmt.Sprint(n)]++
		}
		if fmt.Sprint(got) != fmt.Sprint(want.AllocatorLeaf) {
			t.Errorf("allocator frames at the leaf: got %v, want %v", got, want.AllocatorLeaf)
		}
	}
	checkTop(t, p, want)
}

// checkTop compares the largest stacks, frame by frame, as file+offset.
func checkTop(t *testing.T, p *profile.Profile, want expected) {
	if want.EndsMidLine || !want.HasMappings {
		return
	}
	column := len(p.SampleType) - 1
	samples := slices.Clone(p.Sample)
	slices.SortStableFunc(samples, func(a, b *profile.Sample) int { return int(b.Value[column] - a.Value[column]) })
	for i, w := range want.Top {
		s := samples[i]
		if math.Abs(float64(s.Value[column])-w.Bytes) > 0.5 || math.Abs(float64(s.Value[column-1])-w.Objects) > 0.5 {
			t.Errorf("stack %d: got %v, want %.3f objects, %.3f bytes", i, s.Value, w.Objects, w.Bytes)
		}
		var frames []string
		for _, l := range s.Location {
			file := strings.TrimSuffix(filepath.Base(l.Mapping.File), " (deleted)")
			if strings.HasPrefix(file, "libjemalloc") && len(frames) == 0 {
				continue
			}
			frames = append(frames, fmt.Sprintf("%s+%#x", file, l.Address-l.Mapping.Start+l.Mapping.Offset))
		}
		if n := len(w.Frames); len(frames) < n || !slices.Equal(frames[:n], w.Frames) {
			t.Errorf("stack %d: got %v, want %v", i, frames, w.Frames)
		}
	}
}

// A cut between stacks is told by the header: reference figures of the public dump cut at byte 200,000.
func TestShareOfACutDump(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testdata(t), "public", "pprofutils-jemalloc.heap"))
	if err != nil {
		t.Fatal(err)
	}
	dump, err := jemalloc.Parse(strings.NewReader(string(text[:200_000])), jemalloc.Options{Name: "cut.heap"})
	if err != nil {
		t.Fatal(err)
	}
	r := dump.Report
	if r.Stacks != 275 || math.Abs(r.ShareFound-0.53) > 0.005 || !r.Truncated || r.Mode != jemalloc.ModeUndecided {
		t.Errorf("got %d stacks, share %.3f, truncated %v, mode %s, want 275 stacks, 53 %%, truncated, undecided", r.Stacks, r.ShareFound, r.Truncated, r.Mode)
	}
	if w := strings.Join(r.Warnings(), "\n"); !strings.Contains(w, "cut.heap: byte 200000: the dump ends here") || !strings.Contains(w, "account for 53.") {
		t.Errorf("warnings: %s", w)
	}
}

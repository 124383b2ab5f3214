// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/convert/stack"
)

func generate(t testing.TB, o dumpgen.Options) (*dumpgen.Dump, string) {
	t.Helper()
	d := dumpgen.Generate(o)
	return d, write(t, d)
}

func write(t testing.TB, d *dumpgen.Dump) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The figures agree with those that the generator worked out by the plain formula.
func TestGeneratedDumpsHaveTheirFigures(t *testing.T) {
	for _, o := range []dumpgen.Options{
		{Stacks: 1, Plain: true},
		{Stacks: 300, PythonDepth: 10},
		{Stacks: 300, PythonDepth: 10, Accum: true, Seed: 2},
		{Stacks: 300, Raw: true, Plain: true, SampleBytes: 1 << 17, Threads: 5},
		{Stacks: 300, SampleBytes: 1},
		{Stacks: 300, PythonDepth: 10, Small: 500, Seed: 3},
		{Stacks: 300, SampleBytes: 1, Small: 50},
	} {
		d, text := generate(t, o)
		dump := parse(t, text)
		inuse, alloc := d.Estimate()
		got := sums(dump.Profile)
		small := d.EstimateSmall()
		if r := dump.Report; math.Abs(r.SmallObjects-small.Objects)+math.Abs(r.SmallBytes-small.Bytes) > 1e-9*small.Bytes || r.SmallStacks != o.Small {
			t.Errorf("%+v: small: %d stacks, %.3f objects, %.3f bytes, want %+v", o, r.SmallStacks, r.SmallObjects, r.SmallBytes, small)
		}
		for i, want := range []float64{alloc.Objects, alloc.Bytes, inuse.Objects, inuse.Bytes} {
			added := []float64{0, 0, small.Objects, small.Bytes}[i]
			if math.Abs(float64(got[i])-want-added) > 0.5*float64(o.Stacks+o.Small)+1e-9*want {
				t.Errorf("%+v: column %d: got %d, want %.1f", o, i, got[i], want+added)
			}
			if math.Abs(dump.Report.Estimate[i]-want) > 1e-9*want {
				t.Errorf("%+v: estimate %d: got %.3f, want %.3f", o, i, dump.Report.Estimate[i], want)
			}
		}
		if w := dump.Report.Warnings(); len(w) > 0 {
			t.Errorf("%+v: warnings %q", o, w)
		}
		// Half of the small objects' stacks are those of others.
		if n := len(dump.Profile.Sample); n < o.Stacks || n > o.Stacks+min(o.Small, o.Stacks)/2 || o.Small > 0 && n == o.Stacks {
			t.Errorf("%+v: got %d samples", o, n)
		}
	}
}

// A dump cut anywhere never panics, never gains, and never passes for whole unless nothing was lost.
func TestCutAtEveryByte(t *testing.T) {
	_, accum := generate(t, dumpgen.Options{Stacks: 8, Depth: 6, PythonDepth: 3, Functions: 5, Accum: true, Giants: 3, Small: 5})
	texts := map[string]string{"generated": accum}
	if dir, ok := findTestdata(); ok {
		for _, name := range []string{"own/mix-5.3.0-lg17-nounbias.heap", "own/mix-5.3.0-lg17-accum.heap", "public/clickhouse-gtest-fline-empty-bt.heap"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(b)
		}
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			whole, err := jemalloc.Parse(strings.NewReader(text), jemalloc.Options{})
			if err != nil {
				t.Fatal(err)
			}
			all, last := sums(whole.Profile), [4]int64{}
			rendered := render(whole.Profile) + giants(whole)
			lastGiants := 0
			for n := range len(text) {
				dump, err := jemalloc.Parse(strings.NewReader(text[:n]), jemalloc.Options{})
				if err != nil {
					if !errors.Is(err, jemalloc.ErrTruncated) && !(n == 0 && errors.Is(err, jemalloc.ErrNotHeapV2)) {
						t.Fatalf("cut at %d: %v", n, err)
					}
					continue
				}
				if err := dump.Profile.CheckValid(); err != nil {
					t.Fatalf("cut at %d: %v", n, err)
				}
				got := sums(dump.Profile)
				for i := range got {
					if got[i] < last[i] || got[i] > all[i] {
						t.Fatalf("cut at %d: column %d is %d, was %d a byte before, the whole has %d", n, i, got[i], last[i], all[i])
					}
				}
				last = got
				if len(dump.Giants) < lastGiants || len(dump.Giants) > len(whole.Giants) {
					t.Fatalf("cut at %d: %d giants, a byte before %d, the whole has %d", n, len(dump.Giants), lastGiants, len(whole.Giants))
				}
				lastGiants = len(dump.Giants)
				for i, g := range dump.Giants {
					if w := whole.Giants[i]; g.Bytes != w.Bytes || g.Thread != w.Thread || len(g.Stack) != len(w.Stack) {
						t.Fatalf("cut at %d: giant %d is %+v, in the whole %+v", n, i, g, w)
					}
				}
				if got := render(dump.Profile) + giants(dump); !dump.Report.Truncated && got != rendered {
					t.Fatalf("cut at %d: not reported, but something is lost:\n%s", n, got)
				}
				if dump.Report.Truncated && (dump.Report.TruncatedAt != int64(n) || len(dump.Report.Warnings()) == 0) {
					t.Fatalf("cut at %d: reported at %d, warnings %q", n, dump.Report.TruncatedAt, dump.Report.Warnings())
				}
			}
			if last != all || lastGiants != len(whole.Giants) {
				t.Errorf("the last cut has %v and %d giants, the whole %v and %d", last, lastGiants, all, len(whole.Giants))
			}
		})
	}
}

func TestPermutedStacksAreTheSameProfile(t *testing.T) {
	d, text := generate(t, dumpgen.Options{Stacks: 200, PythonDepth: 10, Accum: true})
	want := sorted(parse(t, text).Profile)
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 0))
		r.Shuffle(len(d.Stacks), func(i, j int) { d.Stacks[i], d.Stacks[j] = d.Stacks[j], d.Stacks[i] })
		if got := sorted(parse(t, write(t, d)).Profile); got != want {
			t.Fatalf("seed %d: another profile", seed)
		}
	}
}

func sorted(p *profile.Profile) string {
	lines := strings.Split(samples(p), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Two dumps merged are the dump that has the stacks of both, give or take the rounding of stacks that both have.
func TestMergedDumpsAddUp(t *testing.T) {
	a := dumpgen.Generate(dumpgen.Options{Stacks: 150, PythonDepth: 10})
	b := dumpgen.Generate(dumpgen.Options{Stacks: 250, PythonDepth: 10}) // its first 150 stacks are those of a
	both := *a
	both.Stacks = append(slices.Clone(a.Stacks), b.Stacks...)
	merged, err := profile.Merge([]*profile.Profile{parse(t, write(t, a)).Profile, parse(t, write(t, b)).Profile})
	if err != nil {
		t.Fatal(err)
	}
	want := parse(t, write(t, &both)).Profile
	if len(merged.Sample) != len(want.Sample) || len(merged.Location) != len(want.Location) {
		t.Fatalf("merged %d samples, %d locations, want %d and %d", len(merged.Sample), len(merged.Location), len(want.Sample), len(want.Location))
	}
	index := map[string][]int64{}
	for _, s := range want.Sample {
		index[key(s)] = s.Value
	}
	for _, s := range merged.Sample {
		w, ok := index[key(s)]
		if !ok || math.Abs(float64(s.Value[0]-w[0])) > 1 || math.Abs(float64(s.Value[1]-w[1])) > 1 {
			t.Fatalf("%s: got %v, want %v", key(s), s.Value, w)
		}
	}
}

// The same function has another id in every process: its lines are still the same locations.
func TestPythonLinesOfTwoProcessesMerge(t *testing.T) {
	one := func(id uint32) *profile.Profile {
		d := &dumpgen.Dump{SampleBytes: 1, Functions: []dumpgen.Function{{ID: id, Name: "f", File: "/f.py", Line: 3}},
			Stacks: []dumpgen.Stack{{Frames: []uint64{dumpgen.Token(id, 5)}, Objects: 1, Bytes: 8}, {Frames: []uint64{dumpgen.Token(id, 6)}, Objects: 1, Bytes: 16}}}
		return parse(t, write(t, d)).Profile
	}
	merged, err := profile.Merge([]*profile.Profile{one(17), one(90000)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := samples(merged), "2 16 : | <f /f.py:5 def 3>\n2 32 : | <f /f.py:6 def 3>\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func key(s *profile.Sample) string {
	var b strings.Builder
	for _, l := range s.Location {
		fmt.Fprintf(&b, "%s|", location(l))
	}
	return b.String()
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		header + "@ 0x1110\n  t*: 3: 96 [0: 0]\n" + maps + sections,
		"heap_v2/524288\n  t*: 1: 1 [3: 33]\n  t0: 1: 1 [3: 33] main\n@ 0x1110 0x5079000000400001 0x5079ffffffffffff\n  t*: 1: 1 [3: 33]\n  t0: 1: 1 [3: 33]\n@\n  t*: 0: 0 [1: 7]\n" + maps + sections,
		"<jemalloc>: x\r\nheap_v2/1\r\n@\r\n  t*: 18446744073709551615: 1 [0: 0]\r\n",
		"heap profile: 1: 1 [1: 1] @ heap/1\n",
		smallDump("heap_v2/4096\n@ 0x1110\n  t*: 3: 96 [0: 0]\n@\n  t*: 1: 16 [7: 112]\nheap_v2/1\n@ 0x1110\n  t*: 1: 16 [0: 0]\n"),
		giantDump("1764400000000000001\t4243\t962174058496\tmalloc\tlistener\t0x1110 0x5079000000400001\n5\t7\t18446744073709551615\tcalloc\t\\t\t\n5\t7\tx\n"),
	} {
		f.Add([]byte(text))
	}
	var b bytes.Buffer
	if err := dumpgen.Write(&b, dumpgen.Options{Stacks: 4, Depth: 5, PythonDepth: 2, Functions: 3, Accum: true, Giants: 2, Small: 3}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		dump, err := jemalloc.Parse(bytes.NewReader(in), jemalloc.Options{Name: "fuzz"})
		threads, err2 := jemalloc.Parse(bytes.NewReader(in), jemalloc.Options{Name: "fuzz", KeepThreads: true})
		if (err == nil) != (err2 == nil) {
			t.Fatalf("with and without threads: %v and %v", err, err2)
		}
		if err != nil {
			if dump != nil || !errors.Is(err, jemalloc.ErrNotHeapV2) && !errors.Is(err, jemalloc.ErrTruncated) {
				t.Fatalf("dump %v with error %v", dump, err)
			}
			return
		}
		p := dump.Profile
		if err := p.CheckValid(); err != nil {
			t.Fatal(err)
		}
		if p.Period < 1 || len(p.SampleType) != 2 && len(p.SampleType) != 4 {
			t.Fatalf("period %d, types %v", p.Period, p.SampleType)
		}
		if r := dump.Report; len(p.Sample) > r.Stacks+r.SmallStacks || r.Stacks+r.SmallStacks > bytes.Count(in, []byte("t*:")) {
			t.Fatalf("%d samples of %d stacks", len(p.Sample), r.Stacks)
		}
		checkGiants(t, dump, in)
		for _, s := range p.Sample {
			if len(s.Location) == 0 {
				t.Fatal("sample without locations")
			}
			for _, v := range s.Value {
				if v < 0 {
					t.Fatalf("negative value in %v", s.Value)
				}
			}
		}
		if got, want := sums(threads.Profile), sums(p); got != want {
			t.Fatalf("sums by thread %v, without %v", got, want)
		}
		for _, w := range dump.Report.Warnings() {
			if w == "" {
				t.Fatal("empty warning")
			}
		}
		var out bytes.Buffer
		if err := p.Write(&out); err != nil {
			t.Fatal(err)
		}
		again, err := profile.ParseData(out.Bytes())
		if err != nil {
			t.Fatalf("writing and reading again: %v", err)
		}
		if got, want := samples(again), samples(p); got != want {
			t.Fatalf("after writing and reading:\n%swas\n%s", got, want)
		}
	})
}

// checkGiants demands what holds for the giants of any input.
func checkGiants(t *testing.T, dump *jemalloc.Dump, in []byte) {
	if n := len(dump.Giants); n > 256 || n > bytes.Count(in, []byte("\n")) || (n == 0) != (dump.GiantStacks == nil) {
		t.Fatalf("%d giants, profile %v", n, dump.GiantStacks)
	} else if n == 0 {
		return
	}
	p := dump.GiantStacks
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	if len(p.Sample) != len(dump.Giants) {
		t.Fatalf("%d samples of %d giants", len(p.Sample), len(dump.Giants))
	}
	stack.Clean(p, stack.Options{})
	if len(p.Sample) != len(dump.Giants) {
		t.Fatalf("%d samples of %d giants are left when cleaned", len(p.Sample), len(dump.Giants))
	}
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	for i, g := range dump.Giants {
		if len(g.Stack) == 0 || len(p.Sample[i].Location) == 0 {
			t.Fatalf("giant %d has no location", i)
		}
		if line := g.Line(); strings.ContainsAny(line, "\n\t\r") || !strings.HasPrefix(line, "request of ") {
			t.Fatalf("giant %d: %q", i, line)
		}
	}
	if err := dump.Profile.CheckValid(); err != nil {
		t.Fatalf("after the giants' stacks were cleaned: %v", err)
	}
}

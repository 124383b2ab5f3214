// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

const rate = 512 << 10

// site is a line of a program and what it holds.
type site struct {
	function, file string
	line, start    int64
	bytes, size    int64 // size of an object
	callers        []string
}

// profileOf makes the profile that a sampler with the random source would have; nil takes every object.
func profileOf(random *rand.Rand, sites ...site) *profile.Profile {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}},
		PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: rate, DefaultSampleType: "inuse_space",
	}
	if random == nil {
		p.Period = 1
	}
	python := &profile.Mapping{ID: 1, File: stack.PythonMapping, HasFunctions: true}
	p.Mapping = []*profile.Mapping{python}
	location := func(name, file string, line, start int64) *profile.Location {
		f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name, Filename: file, StartLine: start}
		p.Function = append(p.Function, f)
		l := &profile.Location{ID: uint64(len(p.Location) + 1), Mapping: python, Line: []profile.Line{{Function: f, Line: line}}}
		p.Location = append(p.Location, l)
		return l
	}
	for _, s := range sites {
		objects := s.bytes / s.size
		bytes := s.bytes
		if random != nil {
			objects = poisson(random, float64(objects), float64(s.size))
			bytes = objects * s.size
		}
		if bytes == 0 {
			continue
		}
		file := s.file
		if file == "" {
			file = "/srv/app/" + s.function + ".py"
		}
		at := []*profile.Location{location(s.function, file, s.line, s.start)}
		for _, c := range s.callers {
			at = append(at, location(c, "/srv/app/main.py", 1, 0))
		}
		p.Sample = append(p.Sample, &profile.Sample{Location: at, Value: []int64{objects, bytes}})
	}
	return p
}

// poisson is the estimate of a number of objects of which each was sampled with p = 1-exp(-size/rate).
func poisson(random *rand.Rand, objects, size float64) int64 {
	p := -math.Expm1(-size / rate)
	mean := objects * p
	sampled := 0.0
	if p > 0.1 {
		for range int64(objects) {
			if random.Float64() < p {
				sampled++
			}
		}
	} else {
		for sum := random.ExpFloat64(); sum < mean; sum += random.ExpFloat64() {
			sampled++
		}
	}
	return int64(math.Round(sampled / p))
}

// process takes dumps a minute apart.
func process(dumps ...*profile.Profile) Process {
	p := Process{Name: "p", Series: &Series{}, Names: map[uint64]Named{}}
	for i, d := range dumps {
		s := SnapshotOf(d)
		s.Time = time.Unix(int64(1000+60*i), 0)
		s.Seq = uint64(i + 1)
		for k, n := range s.Names {
			p.Names[k] = n
		}
		p.Series.Add(s)
	}
	return p
}

// course makes dumps of sites that hold what a function of the dump says. What is added is drawn once, as a sampler does that
// follows objects until they are freed; a site that does not grow is drawn anew, as if it held other objects each time.
func course(random *rand.Rand, dumps int, holds map[string]func(i int) int64) Process {
	var all []*profile.Profile
	names := []string{}
	for name := range holds {
		names = append(names, name)
	}
	slices.Sort(names)
	before, drawn := map[string]int64{}, map[string]int64{}
	for i := range dumps {
		var sites []site
		for _, name := range names {
			holds := holds[name](i)
			draw := func(bytes int64) int64 {
				if random == nil {
					return bytes
				}
				return poisson(random, float64(bytes/1024), 1024) * 1024
			}
			if more := holds - before[name]; more > 0 {
				drawn[name] += draw(more)
			} else {
				drawn[name] = draw(holds)
			}
			before[name] = holds
			sites = append(sites, site{function: name, bytes: drawn[name], size: 1024, line: 7})
		}
		p := profileOf(nil, sites...)
		if random != nil {
			p.Period = rate
		}
		all = append(all, p)
	}
	return process(all...)
}

const mib = 1 << 20

// Each course has the shape that a person would say it has, measured exactly and by samples.
func TestShapes(t *testing.T) {
	saw := func(period int) func(int) int64 {
		return func(i int) int64 { return int64(i%period+1) * 100 * mib / int64(period) }
	}
	for _, c := range []struct {
		name  string
		dumps int
		holds func(i int) int64
		want  Shape
	}{
		{"a line", 3, func(i int) int64 { return int64(i) * 32 * mib }, Growing},
		{"a line, many dumps", 100, func(i int) int64 { return int64(i) * 4 * mib }, Growing},
		{"a line from a base", 20, func(i int) int64 { return 20*mib + int64(i)*8*mib }, Growing},
		{"begins late", 40, func(i int) int64 { return int64(max(i-20, 0)) * 10 * mib }, Growing},
		{"faster and faster", 10, func(i int) int64 { return int64(i*i) * 4 * mib }, Growing},
		{"loaded at once", 3, func(i int) int64 { return int64(min(i, 1)) * 200 * mib }, LevelsOff},
		{"loaded at once, many dumps", 50, func(i int) int64 { return int64(min(i, 1)) * 200 * mib }, LevelsOff},
		{"a cache that fills", 30, func(i int) int64 { return int64(min(i, 10)) * 20 * mib }, LevelsOff},
		{"loaded just now", 3, func(i int) int64 { return int64(i/2) * 200 * mib }, Jump},
		{"saw-tooth", 4, saw(2), UpAndDown},
		{"saw-tooth, many dumps", 60, saw(5), UpAndDown},
		{"saw-tooth, slow", 61, saw(15), UpAndDown},
		{"a peak", 5, func(i int) int64 { return int64(i%4/2) * 300 * mib }, UpAndDown},
		{"two dumps", 2, func(i int) int64 { return int64(i) * 100 * mib }, TooFew},
		{"steady", 30, func(int) int64 { return 100 * mib }, Steady},
		{"shrinks", 5, func(i int) int64 { return int64(5-i) * 50 * mib }, Shrinking},
	} {
		undecided := 0
		for seed := range uint64(21) {
			var random *rand.Rand
			if seed > 0 {
				random = rand.New(rand.NewPCG(seed, 1))
			}
			p := course(random, c.dumps, map[string]func(int) int64{"f": c.holds, "other": func(int) int64 { return 50 * mib }})
			var got Growth
			for key, tr := range p.Series.tracks {
				if p.Names[key].Frames[0].Function == "f" {
					got = p.Series.judge(tr)
				}
			}
			if got.Shape == c.want || got.Shape == Unsure && c.want == Steady && random != nil {
				continue
			}
			if undecided++; got.Shape == Grew && random != nil && undecided <= 2 {
				continue
			}
			t.Errorf("%s, seed %d: %q, want %q (%+v)", c.name, seed, got.Shape, c.want, got)
		}
	}
}

// A leak of 64 MB of small objects, three dumps, the default rate: first in every one of many draws, above a larger cache, a
// model that is loaded, churn and imports; with a slope that holds the truth in 95 % of them.
func TestThreeDumpsFindTheLeak(t *testing.T) {
	const draws = 500
	held, told := 0, 0
	for seed := range uint64(draws) {
		random := rand.New(rand.NewPCG(seed, 2))
		grow := int64(32e6)
		p := course(random, 3, map[string]func(int) int64{
			"leak":    func(i int) int64 { return int64(i) * grow },
			"cache":   func(i int) int64 { return []int64{40, 120, 60}[i] * mib },
			"model":   func(i int) int64 { return int64(min(i, 1)) * 400 * mib },
			"churn":   func(i int) int64 { return 100 * mib },
			"imports": func(i int) int64 { return int64(20+i/2) * mib },
		})
		grown := p.Series.Growth(p.Names)
		if len(grown) == 0 || grown[0].Frames[0].Function != "leak" {
			t.Fatalf("seed %d: first is %v", seed, grown)
		}
		if truth := float64(grow) / 60; math.Abs(grown[0].PerSecond-truth) < 1.96*grown[0].PerSecondError {
			held++
		}
		if grown[0].Confidence < 0.9999 {
			t.Errorf("seed %d: only %v sure of 64 MB", seed, grown[0].Confidence)
		}
		leaks := verdictsOf(p.Verdicts(), Leak)
		for _, v := range leaks {
			told++
			if v.Stack.Frames[0].Function != "leak" {
				t.Errorf("seed %d: %s", seed, v.Says)
			}
		}
	}
	if told < draws*99/100 {
		t.Errorf("a verdict in %d draws of %d", told, draws)
	}
	if held < draws*93/100 {
		t.Errorf("the slope's limits hold the truth %d times of %d", held, draws)
	}
}

func verdictsOf(all []Verdict, k Kind) (out []Verdict) {
	for _, v := range all {
		if v.Kind == k {
			out = append(out, v)
		}
	}
	return out
}

// Programs without a leak: no draw gives a verdict of one.
func TestHealthyProgramsHaveNoLeak(t *testing.T) {
	random := func(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 3)) }
	jitter := rand.New(rand.NewPCG(9, 9))
	healthy := map[string]map[string]func(int) int64{
		"many steady stacks":     {},
		"a cache of random size": {"cache": func(int) int64 { return int64(50+jitter.IntN(50)) * mib }},
		"a cache that fills":     {"cache": func(i int) int64 { return int64(min(i, 4)) * 30 * mib }},
		"saw-tooth":              {"cache": func(i int) int64 { return int64(i%7) * 30 * mib }},
		"one spike":              {"spike": func(i int) int64 { return map[bool]int64{true: 500 * mib}[i == 5] }},
		"one load":               {"model": func(i int) int64 { return map[bool]int64{true: 800 * mib}[i > 2] }},
		"hands over":             {"old": func(i int) int64 { return int64(20-i) * 20 * mib }, "new": func(i int) int64 { return int64(i) * 20 * mib }},
		"logarithm":              {"cache": func(i int) int64 { return int64(60*math.Log(float64(1+i*i))) * mib }},
	}
	for i := range 100 {
		healthy["many steady stacks"][fmt.Sprintf("f%03d", i)] = func(int) int64 { return int64(1+i%40) * mib }
	}
	for name, holds := range healthy {
		for seed := range uint64(20) {
			for _, dumps := range []int{3, 8, 20} {
				if dumps == 3 && (name == "a cache that fills" || name == "saw-tooth" || name == "logarithm" || name == "hands over") ||
					dumps == 8 && name == "logarithm" {
					continue // so far it is no different from a leak
				}
				p := course(random(seed), dumps, holds)
				if leaks := verdictsOf(p.Verdicts(), Leak); len(leaks) > 0 {
					t.Errorf("%s, %d dumps, seed %d: %s", name, dumps, seed, leaks[0].Says)
				}
			}
		}
	}
}

// The spans are exact about each dump, however many there were: what was empty in one of the later dumps has not grown.
func TestSpansForgetNoLow(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for dumps := 3; dumps < 200; dumps++ {
		low := dumps - 1 - random.IntN(max(dumps/8, 1))
		p := course(nil, dumps, map[string]func(int) int64{
			"stays": func(int) int64 { return 10 * mib },
			"grows": func(i int) int64 { return int64(10+i) * mib },
			"empty": func(i int) int64 {
				if i == low {
					return 0
				}
				return int64(10+i) * mib
			},
		})
		if n := len(p.Series.spans); n > maxSpans+1 {
			t.Fatalf("%d dumps: %d spans", dumps, n)
		}
		for _, g := range p.Series.Growth(p.Names) {
			switch name := g.Frames[0].Function; {
			case name == "grows" && (g.Shape != Growing || g.Bytes() != int64(dumps-1)*mib || g.Steady < g.Bytes()/2):
				t.Errorf("%d dumps: %+v", dumps, g)
			case name == "empty" && (g.Shape == Growing || g.Shape == LevelsOff):
				t.Errorf("%d dumps, low at %d: %+v", dumps, low, g)
			case name == "stays":
				t.Errorf("%d dumps: %+v", dumps, g)
			}
		}
	}
}

func TestSlopes(t *testing.T) {
	p := process()
	for i := range 5 {
		s := SnapshotOf(profileOf(nil, site{function: "f", line: 3, size: mib, bytes: int64(i) * 6 * mib}, site{function: "g", line: 3, size: mib, bytes: mib}))
		s.Time, s.Step = time.Unix(int64(100+10*i), 0), int64(50+20*i)
		p.Series.Add(s)
		for k, n := range s.Names {
			p.Names[k] = n
		}
	}
	g := p.Series.Growth(p.Names)[0]
	if math.Abs(g.PerSecond-0.6*mib) > 1 || g.PerSecondError > 1 || g.PerDump != 6*mib || math.Abs(g.PerStep-0.3*mib) > 1 || g.FirstSeen != 1 || g.Share != 0.96 {
		t.Errorf("%+v", g)
	}
	if s := g.Slope(); s != "36.0 MiB ± 0 B a minute, 307.2 KiB a step" {
		t.Errorf("slope %q", s)
	}
}

func TestMergeTellsWhoDiffers(t *testing.T) {
	parts := map[string][]Growth{}
	for i := range 4 {
		random := rand.New(rand.NewPCG(uint64(i), 5))
		p := course(random, 5, map[string]func(int) int64{
			"all": func(k int) int64 { return int64(k) * 20 * mib },
			"one": func(k int) int64 {
				if i != 2 {
					return 0
				}
				return int64(k) * 18 * mib
			},
		})
		parts[fmt.Sprint("rank", i)] = p.Series.Growth(p.Names)
	}
	merged := Merge(parts)
	if len(merged) != 2 || merged[0].Frames[0].Function != "all" || len(merged[0].Parts) != 4 || len(merged[0].Differs) != 0 {
		t.Fatalf("%+v", merged)
	}
	one := merged[1]
	if len(one.Parts) != 1 || len(one.Differs) != 1 || one.Differs[0].Process != "rank2" || one.Shape != Growing {
		t.Errorf("%+v", one)
	}
	if sum := merged[0].Bytes(); sum < 290*mib || sum > 350*mib {
		t.Errorf("%s in all, want about 320 MiB", stack.Size(sum))
	}
}

// The error is what repeated draws show.
func TestVariance(t *testing.T) {
	for _, size := range []float64{64, 8 << 10, 256 << 10, 1 << 20} {
		const total, draws = 64 << 20, 3000
		random := rand.New(rand.NewPCG(uint64(size), 4))
		objects := math.Floor(total / size)
		sum, square := 0.0, 0.0
		p := -math.Expm1(-size / rate)
		for range draws {
			v := 0.0
			if size >= 8<<10 {
				for range int(objects) {
					if random.Float64() < p {
						v += size / p
					}
				}
			} else {
				v = float64(poisson(random, objects, size)) * size
			}
			sum += v
			square += v * v
		}
		mean := sum / draws
		got := math.Sqrt(square/draws - mean*mean)
		want := math.Sqrt(variance(total, objects, rate))
		if math.Abs(got-want) > 0.08*want+1000 {
			t.Errorf("objects of %v: error %v, want %v", size, got, want)
		}
	}
}

func TestFigures(t *testing.T) {
	const m = mib
	for _, c := range []struct {
		name        string
		first, last map[string]int64
		want        Kind // "" for none
		says        string
	}{
		{"the allocator keeps it",
			map[string]int64{"rss": 150 * m, "allocated": 100 * m, "active": 105 * m, "resident": 120 * m, "metadata": 5 * m},
			map[string]int64{"rss": 350 * m, "allocated": 100 * m, "active": 180 * m, "resident": 320 * m, "metadata": 5 * m},
			Retention, "215.0 MiB of it are kept (15.0 MiB in the first dump); trimming would return 135.0 MiB, 80.0 MiB are holes"},
		{"the allocator keeps it, counted by page", map[string]int64{"rss": 350 * m, "allocated": 100 * m, "active": 105 * m, "resident": 500 * m, "part_allocator": 320 * m},
			map[string]int64{"rss": 350 * m, "allocated": 100 * m, "active": 180 * m, "resident": 500 * m, "part_allocator": 320 * m},
			Retention, "220.0 MiB of it are kept (220.0 MiB in the first dump); trimming would return 140.0 MiB, 80.0 MiB are holes"},
		{"pages that nobody has touched", map[string]int64{"rss": 150 * m, "allocated": 100 * m, "resident": 320 * m}, map[string]int64{"rss": 150 * m, "allocated": 100 * m, "resident": 320 * m}, "", ""},
		{"anonymous", map[string]int64{"rss": 60 * m, "anon": 50 * m, "resident": 40 * m, "file": 10 * m},
			map[string]int64{"rss": 360 * m, "anon": 350 * m, "resident": 40 * m, "file": 10 * m},
			OutsideMalloc, "not from malloc: 310.0 MiB of private anonymous memory (10.0 MiB in the first dump)"},
		{"anonymous, counted by page", map[string]int64{"rss": 60 * m, "part_other": 5 * m, "part_heap": m, "anon": 50 * m, "resident": 40 * m},
			map[string]int64{"rss": 360 * m, "part_other": 200 * m, "part_heap": 9 * m, "part_allocator": 45 * m, "part_python_arenas": 90 * m, "anon": 350 * m, "resident": 50 * m},
			OutsideMalloc, "not from malloc: 209.0 MiB of private anonymous memory (6.0 MiB in the first dump) of 360.0 MiB resident; malloc's allocator has 45.0 MiB"},
		{"anonymous, counted once", map[string]int64{"rss": 60 * m, "part_other": 5 * m, "part_allocator": 10 * m, "part_python_arenas": 6 * m, "part_sum": 1, "anon": 50 * m, "resident": 140 * m, "active": 9 * m},
			map[string]int64{"rss": 460 * m, "anon": 450 * m, "resident": 240 * m, "active": 109 * m},
			OutsideMalloc, "not from malloc: 334.0 MiB of private anonymous memory (5.0 MiB in the first dump)"},
		{"shared", map[string]int64{"rss": 60 * m}, map[string]int64{"rss": 360 * m, "shmem": 300 * m}, OutsideMalloc, "300.0 MiB of shared memory"},
		{"file", map[string]int64{"rss": 60 * m, "file": 20 * m}, map[string]int64{"rss": 360 * m, "file": 320 * m}, OutsideMalloc, "320.0 MiB of mapped file pages, 300.0 MiB more"},
		{"copy on write", map[string]int64{"rss": 200 * m, "pss": 60 * m, "allocated": 150 * m, "inherited_bytes": 150 * m},
			map[string]int64{"rss": 202 * m, "pss": 190 * m, "allocated": 151 * m, "inherited_bytes": 150 * m},
			CopyOnWrite, "made 128.0 MiB of inherited pages its own"},
		{"not forked", map[string]int64{"rss": 200 * m, "pss": 60 * m}, map[string]int64{"rss": 202 * m, "pss": 190 * m}, "", ""},
		{"a fork that allocates", map[string]int64{"rss": 200 * m, "pss": 60 * m, "allocated": 50 * m, "inherited_bytes": 50 * m},
			map[string]int64{"rss": 330 * m, "pss": 190 * m, "allocated": 180 * m, "inherited_bytes": 50 * m}, "", ""},
		{"small", map[string]int64{"rss": 20 * m, "anon": 10 * m, "resident": 9 * m, "allocated": m, "metadata": m},
			map[string]int64{"rss": 40 * m, "anon": 30 * m, "resident": 9 * m, "allocated": m, "metadata": m}, "", ""},
		{"no figures", nil, nil, "", ""},
	} {
		p := process()
		for i, f := range []map[string]int64{c.first, c.last} {
			s := SnapshotOf(profileOf(nil, site{function: "f", line: 1, size: mib, bytes: mib}))
			s.Figures, s.Time = f, time.Unix(int64(60*i+1), 0)
			p.Series.Add(s)
		}
		got := p.Verdicts()
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: %+v", c.name, got)
		case c.want != "" && (len(got) != 1 || got[0].Kind != c.want || !strings.Contains(got[0].Says, c.says) || got[0].Helps == "" || len(got[0].Numbers) == 0):
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestSpike(t *testing.T) {
	p := process()
	for i, v := range []int64{100, 100, 700, 110, 100} {
		s := SnapshotOf(profileOf(nil, site{function: "base", line: 1, size: mib, bytes: 100 * mib}, site{function: "save", line: 4, size: mib, bytes: (v - 100) * mib}))
		s.Step, s.Reason, s.Time = int64(i), "interval", time.Unix(int64(60*i+1), 0)
		if i == 2 {
			s.Reason = "jump"
		}
		for k, n := range s.Names {
			p.Names[k] = n
		}
		p.Series.Add(s)
	}
	got := p.Verdicts()
	if len(got) != 1 || got[0].Kind != Spike || got[0].Bytes != 600*mib || got[0].Says !=
		"700.0 MiB were live for a while (dump 3 of 5, set off by jump, at step 2), 600.0 MiB more than before and after; most of it at save save.py:4" {
		t.Errorf("%+v", got)
	}
	saw := course(nil, 40, map[string]func(int) int64{"cache": func(i int) int64 { return int64(i%4) * 100 * mib }})
	if got := verdictsOf(saw.Verdicts(), Spike); len(got) > 0 {
		t.Errorf("a saw-tooth is a spike: %+v", got)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1 << 20: "1.0 MiB", -3 << 29: "-1.5 GiB"} {
		if got := stack.Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
}

// Pinned memory is rounded up to powers of two; a device's memory lies in holes.
func TestDevice(t *testing.T) {
	const m = mib
	for _, c := range []struct {
		device torchmem.Device
		want   Kind
		says   string
	}{
		{torchmem.Device{Name: "cpu", Kind: "pinned", Active: 256 * m, Requested: 129 * m, Rounding: 127 * m, Reserved: 256 * m}, Rounding,
			"pinned memory of the host: 129.0 MiB were asked for, 256.0 MiB were got: 127.0 MiB are lost"},
		{torchmem.Device{Name: "cpu", Kind: "pinned", Active: 256 * m, Requested: 129 * m, Rounding: 127 * m, Rounded: []torchmem.StackUse{
			{Bytes: 100 * m, Objects: 3, Stack: []torchmem.Frame{{Name: "at::empty"}, {Name: "c10::alloc"}, {Name: "stage", File: "/srv/load.py", Line: 7, Python: true}, {Name: "main", File: "/srv/load.py", Line: 9, Python: true}}},
		}}, Rounding, "127.0 MiB are lost to rounding up to powers of two, 100.0 MiB of it at stage load.py:7"},
		{torchmem.Device{Name: "cpu", Kind: "pinned", Active: 256 * m, Requested: 250 * m, Rounding: 6 * m, Reserved: 256 * m}, "", ""},
		{torchmem.Device{Name: "cuda:0", Kind: "cuda", Reserved: 1000 * m, Inactive: 600 * m, LargestHole: 20 * m}, Fragmentation,
			"cuda:0: 600.0 MiB of 1000.0 MiB reserved (60%) are inactive: 0 B in segments without any live block, 600.0 MiB in holes that live blocks pin; the largest hole is 20.0 MiB"},
		{torchmem.Device{Name: "cuda:0", Kind: "cuda", Reserved: 1000 * m, Inactive: 100 * m}, "", ""},
	} {
		got := Device(&c.device)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || got[0].Kind != c.want || !strings.Contains(got[0].Says, c.says) || got[0].Helps == "") {
			t.Errorf("%+v: %+v", c.device, got)
		}
		if len(c.device.Rounded) > 0 && (got[0].Key == 0 || got[0].Stack.Text(stack.Frame.String) != "stage load.py:7 (in c10::alloc) < main load.py:9" || len(got[0].Stack.Callees) != 2) {
			t.Errorf("stack %x %+v", got[0].Key, got[0].Stack)
		}
	}
}

// Survivors that recur from step to step are a leak with its stack.
func TestDeviceLeak(t *testing.T) {
	var b bytes.Buffer
	if err := snapgen.Generate(snapgen.Options{Leak: 30 << 20}).Write(&b); err != nil {
		t.Fatal(err)
	}
	s, err := torchmem.Read(&b, torchmem.Options{Name: "snapshot"})
	if err != nil {
		t.Fatal(err)
	}
	got := Device(s.Devices[0])
	if len(got) != 1 || got[0].Kind != Leak || got[0].Bytes != 120<<20 || got[0].Stack.Place() != "remember leak.py:12" {
		t.Errorf("%+v", got)
	}
}

// A process that leaves grows no more, and does not count its pages: neither says anything about what it did before.
func TestTheDumpOfTheExit(t *testing.T) {
	p := process()
	for i, held := range []int64{1, 2, 3, 4, 4} {
		s := SnapshotOf(profileOf(nil, site{function: "f", line: 3, size: mib, bytes: held * 10 * mib}))
		s.Time, s.Reason = time.Unix(int64(100+10*i), 0), "interval"
		s.Figures = map[string]int64{"part_sum": 1, "part_other": 100 * mib, "rss": 200 * mib}
		if i == 4 {
			s.Reason, s.Figures = "exit", map[string]int64{"rss": 200 * mib, "anon": 150 * mib, "resident": 149 * mib}
		}
		for k, n := range s.Names {
			p.Names[k] = n
		}
		p.Series.Add(s)
	}
	got := p.Verdicts()
	if len(got) != 2 || got[0].Kind != Leak || got[1].Kind != OutsideMalloc || got[1].Bytes != 100*mib {
		t.Errorf("%+v", got)
	}
}

// A dump that something set off, just after one by the clock, is no point of its own; one that the program asked for is.
func TestDumpsAtOnce(t *testing.T) {
	for reason, want := range map[string]int{"jump": 4, "api": 5} {
		p := process()
		at := []int{0, 60, 120, 121, 180}
		for i, held := range []int64{0, 40, 80, 120, 121} {
			s := SnapshotOf(profileOf(nil, site{function: "f", line: 3, size: mib, bytes: held * mib}, site{function: "g", line: 3, size: mib, bytes: mib}))
			s.Time, s.Reason = time.Unix(int64(100+at[i]), 0), "interval"
			if i == 3 {
				s.Reason = reason
			}
			for k, n := range s.Names {
				p.Names[k] = n
			}
			p.Series.Add(s)
		}
		if got := len(p.Series.points(&p.Series.live)); got != want {
			t.Errorf("%s: %d points", reason, got)
		}
	}
}

// A trickle, however steady, does not rank above a load that is a hundred times as much.
func TestATrickleRanksByItsSize(t *testing.T) {
	p := course(nil, 5, map[string]func(int) int64{
		"trickle": func(i int) int64 { return int64(i) * mib / 4 },
		"load":    func(i int) int64 { return int64(min(i, 1)) * 100 * mib },
		"leak":    func(i int) int64 { return int64(i) * 10 * mib },
	})
	var got []string
	for _, g := range p.Series.Growth(p.Names) {
		got = append(got, g.Frames[0].Function)
	}
	if fmt.Sprint(got) != "[leak load trickle]" {
		t.Errorf("ranked %v", got)
	}
}

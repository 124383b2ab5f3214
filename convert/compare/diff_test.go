// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func side(random *rand.Rand, snapshots int, sites ...site) *Side {
	s := &Side{}
	for range snapshots {
		s.Add(profileOf(random, sites...), 1)
	}
	return s
}

func rowOf(t *testing.T, c *Comparison, function string) Row {
	t.Helper()
	var found []Row
	for _, r := range c.Rows {
		if r.Function == function {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d rows of %s: %+v", len(found), function, found)
	}
	return found[0]
}

// The head lies elsewhere, under a newer Python, and its lines have moved: only what really changed is told.
func TestDiffSeesThroughMovesAndRenames(t *testing.T) {
	base := side(nil, 3,
		site{function: "add", file: "/srv/app-1.0/service/scheduler.py", line: 41, start: 40, bytes: 20 * mib, size: 1024},
		site{function: "keep", file: "/srv/app-1.0/service/scheduler.py", line: 81, start: 80, bytes: 10 * mib, size: 1024},
		site{function: "__init__", file: "/srv/app-1.0/service/__init__.py", line: 3, start: 2, bytes: 3 * mib, size: 1024},
		site{function: "loads", file: "/opt/v1/lib/python3.11/site-packages/msgpack/fallback.py", line: 9, start: 5, bytes: 30 * mib, size: 1024},
		site{function: "gone", file: "/srv/app-1.0/service/old.py", line: 1, bytes: 7 * mib, size: 1024},
		site{function: "compile", file: "/usr/lib/python3.11/re.py", line: 3, bytes: 2 * mib, size: 1024},
	)
	head := side(nil, 6,
		site{function: "add", file: "/srv/app-1.1/service/scheduler.py", line: 57, start: 56, bytes: 120 * mib, size: 1024},
		site{function: "keep", file: "/srv/app-1.1/service/scheduler.py", line: 97, start: 96, bytes: 10 * mib, size: 1024},
		site{function: "__init__", file: "/srv/app-1.1/service/__init__.py", line: 4, start: 2, bytes: 3 * mib, size: 1024},
		site{function: "loads", file: "/opt/v2/lib/python3.12/site-packages/msgpack/fallback.py", line: 12, start: 8, bytes: 30 * mib, size: 1024},
		site{function: "fresh", file: "/srv/app-1.1/service/fresh.py", line: 5, bytes: 9 * mib, size: 1024},
		site{function: "compile", file: "/usr/local/lib/python3.12/re.py", line: 4, bytes: mib, size: 1024},
	)
	c := Diff(base, head)
	for function, want := range map[string]struct {
		change     Change
		line, from int64
		delta      float64
	}{
		"add": {Grown, 57, 41, 100}, "keep": {Same, 97, 81, 0}, "__init__": {Same, 4, 3, 0}, "loads": {Same, 12, 9, 0},
		"gone": {Gone, 0, 1, -7}, "fresh": {New, 5, 0, 9}, "compile": {Shrunk, 4, 3, -1},
	} {
		r := rowOf(t, c, function)
		if r.Change != want.change || r.Line != want.line || r.BaseLine != want.from || r.Delta() != want.delta*mib {
			t.Errorf("%s: %+v, want %+v", function, r, want)
		}
	}
	if c.Rows[0].Function != "add" || c.Delta() != 101*mib || c.Sigma != 0 {
		t.Errorf("first %+v, delta %v ± %v", c.Rows[0], c.Delta(), c.Sigma)
	}
	if to := c.Renamed["/srv/app-1.0/service/scheduler.py"]; to != "/srv/app-1.1/service/scheduler.py" || len(c.Renamed) != 2 {
		t.Errorf("renamed: %v", c.Renamed)
	}
	both := 0
	for _, s := range c.Stacks() {
		if s.Base > 0 && s.Head > 0 {
			both++
		}
	}
	if both != 5 {
		t.Errorf("%d stacks on both sides: %+v", both, c.Stacks())
	}
}

// Two lines of a function: the one that grew is named, though both have moved; where they cannot be told apart they are one.
func TestDiffPairsLines(t *testing.T) {
	at := func(line, start, bytes int64) site {
		return site{function: "f", file: "/a/f.py", line: line, start: start, bytes: bytes * mib, size: 1024}
	}
	for _, c := range []struct {
		name       string
		base, head []site
		want       string
	}{
		{"by distance", []site{at(11, 10, 5), at(13, 10, 20)}, []site{at(31, 30, 5), at(33, 30, 80)}, "13>33:60 11>31:0"},
		{"by order", []site{at(11, 10, 5), at(13, 10, 20)}, []site{at(32, 30, 5), at(35, 30, 80)}, "13>35:60 11>32:0"},
		{"by line", []site{at(11, 0, 5), at(13, 0, 20)}, []site{at(11, 0, 5), at(13, 0, 80)}, "13>13:60 11>11:0"},
		{"a new line", []site{at(11, 10, 5)}, []site{at(11, 10, 5), at(12, 10, 9)}, "0>12:9 11>11:0"},
		{"a new line, and all moved", []site{at(11, 10, 5), at(13, 10, 20)}, []site{at(31, 30, 5), at(32, 30, 9), at(33, 30, 80)}, "13>33:60 0>32:9 11>31:0"},
		{"not to be told apart", []site{at(11, 10, 5)}, []site{at(13, 10, 5), at(14, 10, 7)}, "11>14:7"},
	} {
		var got []string
		for _, r := range Diff(side(nil, 1, c.base...), side(nil, 1, c.head...)).Rows {
			got = append(got, fmt.Sprintf("%d>%d:%.0f", r.BaseLine, r.Line, r.Delta()/mib))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}

// Two draws from one program: nothing has changed.
func TestDiffDoesNotRankNoise(t *testing.T) {
	var sites []site
	for i := range 200 {
		sites = append(sites, site{function: fmt.Sprint("f", i), line: 1, bytes: int64(1+i) * mib / 2, size: 512})
	}
	told := 0
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 6))
		for _, r := range Diff(side(random, 1, sites...), side(random, 1, sites...)).Rows {
			if r.Change != Same {
				told++
			}
		}
	}
	// Of 4000 rows, 3 sigma leave 11.
	if told > 40 {
		t.Errorf("%d changes are told where nothing changed", told)
	}
	random := rand.New(rand.NewPCG(1, 7))
	head := append([]site{}, sites...)
	head[150].bytes += 100 * mib
	r := Diff(side(random, 4, sites...), side(random, 4, head...)).Rows[0]
	if r.Function != "f150" || r.Change != Grown || r.Delta() < 70*mib || r.Delta() > 130*mib {
		t.Errorf("%+v", r)
	}
}

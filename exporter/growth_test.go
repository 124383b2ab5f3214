// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func growthText(grown []Growth) string {
	var text string
	for _, g := range grown {
		text += fmt.Sprintf("%s %s %d→%d; ", g.Folder, g.Frames[0].Function, g.First, g.Last)
	}
	return text
}

func TestGrowth(t *testing.T) {
	for _, c := range []struct {
		name  string
		dumps []map[string]int64
		want  string
	}{
		{"a leak, a cache, what stays and what shrinks", []map[string]int64{
			{"leak": 10, "cache": 5, "stays": 100, "shrinks": 50},
			{"leak": 20, "cache": 90, "stays": 100, "shrinks": 40},
			{"leak": 30, "cache": 5, "stays": 100, "shrinks": 30},
			{"leak": 40, "cache": 90, "stays": 100, "shrinks": 20},
		}, "p leak 10→40; "},
		{"two dumps", []map[string]int64{{"a": 1}, {"a": 3, "b": 10}}, "p b 0→10; p a 1→3; "},
		{"one dump", []map[string]int64{{"a": 1, "b": 2, "c": 3, "d": 4}}, "p d 0→4; p c 0→3; p b 0→2; "},
		{"none", nil, ""},
		{"the steadiest comes first", []map[string]int64{{}, {"jump": 1, "steady": 20}, {"jump": 100, "steady": 30}}, "p steady 0→30; p jump 0→100; "},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p Pipeline
			p.names = map[uint64]named{}
			proc := &process{summary: Process{Folder: "p"}}
			p.seen = []*process{proc}
			for _, sums := range c.dumps {
				p.remember(proc, snapshotOf(profileOf(sums)))
			}
			if got := growthText(p.Growth(3, nil)); got != c.want {
				t.Errorf("growth %q, want %q", got, c.want)
			}
			if got := p.Growth(3, func(Process) bool { return false }); len(got) > 0 {
				t.Errorf("growth of no process: %v", growthText(got))
			}
		})
	}
}

// The spans are exact about each dump, however many there were: a stack that was empty in any one of the later dumps has
// not grown, and a stack that held at least something in all of them has.
func TestSpansForgetNoLow(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for dumps := 2; dumps < 200; dumps++ {
		low := dumps - 1 - random.IntN(max(dumps/8, 1))
		h := &history{}
		for i := range dumps {
			sums := map[uint64]int64{1: 10, 2: 10 + int64(i), 3: 10 + int64(i)}
			if i == low {
				delete(sums, 3)
			}
			h.add(sums)
		}
		want := int64(dumps - 1)
		for _, s := range h.spans {
			if s.from >= dumps/2 {
				want = min(want, int64(s.from))
			}
		}
		if want > int64(dumps/2+dumps/4+1) {
			t.Errorf("%d dumps: only those from %d count", dumps, want)
		}
		grown := map[int64]bool{}
		for _, g := range h.growth("p", map[uint64]named{1: {}, 2: {}, 3: {}}) {
			grown[g.steady] = true
			if g.Last != int64(10+dumps-1) || g.First != 10 || g.steady != want {
				t.Errorf("%d dumps: %+v", dumps, g)
			}
		}
		if len(grown) != 1 {
			t.Errorf("%d dumps, low at %d: %d stacks grew, want the one without a low", dumps, low, len(grown))
		}
		if len(h.spans) > maxSpans {
			t.Errorf("%d dumps: %d spans are remembered", dumps, len(h.spans))
		}
	}
}

func TestNamesAreBounded(t *testing.T) {
	var p Pipeline
	p.names = map[uint64]named{}
	proc := &process{}
	p.seen = []*process{proc}
	next := 0
	for range 100 {
		s := snapshot{sums: map[uint64]int64{}, names: map[uint64]named{}}
		for range maxStacks {
			next++
			s.sums[uint64(next)], s.names[uint64(next)] = 1, named{}
		}
		p.remember(proc, s)
	}
	if n := len(p.names); n > maxNames {
		t.Errorf("%d names are remembered", n)
	}
	for key := range proc.history.last {
		if _, ok := p.names[key]; !ok {
			t.Fatal("a stack of the last dump has lost its name")
		}
	}
}

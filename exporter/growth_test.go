// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/exporter/sink"
)

func growthText(grown []Growth) string {
	var text string
	for _, g := range grown {
		text += fmt.Sprintf("%s %s %d→%d; ", g.Folder, g.Frames[0].Function, g.First, g.Last)
	}
	return text
}

// withDumps is a pipeline that has seen a process's dumps, a minute apart.
func withDumps(dumps ...map[string]int64) (*Pipeline, *process) {
	p := &Pipeline{names: map[uint64]compare.Named{}}
	proc := &process{summary: Process{Folder: "p"}, entries: map[string]*entry{}}
	p.seen = []*process{proc}
	for i, sums := range dumps {
		p.remember(proc, snapshotOf(dumpAt(i, sums)))
	}
	return p, proc
}

func dumpAt(i int, sums map[string]int64) *sink.Item {
	return &sink.Item{Profile: profileOf(sums), Time: time.Unix(int64(1000+60*i), 0), Seq: uint64(i + 1), Process: "p", Kind: "host"}
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
			p, _ := withDumps(c.dumps...)
			if got := growthText(p.Growth(3, nil)); got != c.want {
				t.Errorf("growth %q, want %q", got, c.want)
			}
			if got := p.Growth(3, func(Process) bool { return false }); len(got) > 0 {
				t.Errorf("growth of no process: %v", growthText(got))
			}
			if got := p.Verdicts(func(Process) bool { return false }); len(got) > 0 {
				t.Errorf("verdicts on no process: %v", got)
			}
		})
	}
}

func TestNamesAreBounded(t *testing.T) {
	p, proc := withDumps()
	next := 0
	for range 100 {
		s := compare.Snapshot{Stacks: map[uint64]compare.Held{}, Names: map[uint64]compare.Named{}}
		for range compare.MaxStacks {
			next++
			s.Stacks[uint64(next)], s.Names[uint64(next)] = compare.Held{Bytes: 1}, compare.Named{}
		}
		p.remember(proc, s)
	}
	if n := len(p.names); n > maxNames {
		t.Errorf("%d names are remembered", n)
	}
	for key := next; key > next-compare.MaxStacks; key-- {
		if _, ok := p.names[uint64(key)]; !ok {
			t.Fatal("a stack of the last dump has lost its name")
		}
	}
}

// A verdict is told when it is reached, and again when it is about twice as much or an hour has passed: no more.
func TestVerdictsAreToldOnce(t *testing.T) {
	const m = 1 << 20
	p, proc := withDumps()
	now := time.Unix(5000, 0)
	p.cfg.now = func() time.Time { return now }
	events := &worker{events: &mourners{}}
	p.workers = []*worker{{}, events}
	var got []string
	for i := range 9 {
		it := dumpAt(i, map[string]int64{"leak": int64(i) * 10 * m, "other": 50 * m})
		it.Giants, it.Reason = nil, "interval"
		if i == 4 {
			it.Giants = []string{"request of 8.0 GiB by malloc in thread 7 at read wire.py:3"}
		}
		if i == 8 {
			now = now.Add(2 * time.Hour)
		}
		p.remember(proc, snapshotOf(it))
		for _, e := range p.tell(proc, it) {
			v := e.event.Verdict
			got = append(got, fmt.Sprintf("%d %s %d", i+1, v.Kind, v.Bytes/m))
			if len(e.open) != 1 || !e.open[events] || v.Seq != it.Seq || v.Says == "" || v.Helps == "" || v.Time != it.Time ||
				v.Kind == "leak" && (v.Function != "leak" || len(v.Stack) == 0 || v.Numbers["growth"] != float64(v.Bytes)) {
				t.Errorf("%+v, offered to %d", v, len(e.open))
			}
		}
	}
	want := "[3 leak 20 5 giant_allocation 0 5 leak 40 9 leak 80]"
	if fmt.Sprint(got) != want {
		t.Errorf("told %v, want %v", got, want)
	}
	if p.stats.Pending != 4 || len(proc.entries) != 4 {
		t.Errorf("%d pending, %d entries", p.stats.Pending, len(proc.entries))
	}
}

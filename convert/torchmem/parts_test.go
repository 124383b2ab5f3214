// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestLargestHole(t *testing.T) {
	at := func(addr uint64, size int64) span { return span{addr: addr, size: size} }
	joined := func(addr uint64, size int64) span { return span{addr: addr, size: size, joins: true} }
	f := func(want int64, ranges, blocks []span) {
		t.Helper()
		if got := largestHole(ranges, blocks); got != want {
			t.Errorf("%v without %v: got %d, want %d", ranges, blocks, got, want)
		}
	}
	f(0, nil, nil)
	f(100, []span{at(0, 100)}, nil)
	f(60, []span{at(0, 100)}, []span{at(0, 10), at(20, 20)})
	f(50, []span{at(0, 100)}, []span{at(50, 50)})
	f(0, []span{at(0, 100)}, []span{at(0, 100)})
	f(30, []span{at(0, 100)}, []span{at(70, 30), at(0, 40)})
	// Segments that happen to be neighbours are two; mapped ranges are one.
	f(100, []span{at(0, 100), at(100, 100)}, nil)
	f(200, []span{joined(100, 100), joined(0, 100)}, nil)
	f(150, []span{joined(0, 100), joined(100, 100)}, []span{at(0, 50)})
	f(100, []span{joined(0, 100), at(100, 100)}, nil)
	// Blocks that overlap, or lie elsewhere.
	f(40, []span{at(0, 100)}, []span{at(0, 60), at(10, 20)})
	f(100, []span{at(1000, 100)}, []span{at(0, 60), at(5000, 9)})
}

func TestUndo(t *testing.T) {
	event := func(grows bool, addr uint64, size int64) segmentEvent {
		return segmentEvent{span: span{addr: addr, size: size}, grows: grows}
	}
	f := func(want string, ranges []span, events ...segmentEvent) {
		t.Helper()
		got := undo(ranges, events)
		slices.SortFunc(got, func(a, b span) int { return int(a.addr) - int(b.addr) })
		var text []string
		for _, r := range got {
			text = append(text, fmt.Sprintf("%d+%d", r.addr, r.size))
		}
		if strings.Join(text, " ") != want {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	f("100+50", []span{{addr: 100, size: 50}})
	f("", []span{{addr: 100, size: 50}}, event(true, 100, 50))
	f("100+50 200+10", []span{{addr: 100, size: 50}}, event(false, 200, 10))
	// Unmapping and mapping are of parts.
	f("100+20 140+10", []span{{addr: 100, size: 50}}, event(true, 120, 20))
	f("130+20", []span{{addr: 100, size: 50}}, event(true, 90, 40))
	f("100+50", []span{{addr: 100, size: 50}}, event(true, 300, 40))
	f("100+50", []span{{addr: 100, size: 50}}, event(false, 300, 40), event(true, 300, 40))
}

func TestSegmentLogKeepsTheLast(t *testing.T) {
	var l segmentLog
	const n = segmentLogSize + 100
	for i := range n {
		l.add(segmentEvent{span: span{addr: uint64(i)}})
	}
	events, ok := l.since(n - 3)
	if !ok || len(events) != 3 || events[0].addr != n-1 || events[2].addr != n-3 {
		t.Errorf("got %v, %v", events, ok)
	}
	if _, ok := l.since(100); !ok {
		t.Error("the oldest that is kept is not there")
	}
	if _, ok := l.since(99); ok {
		t.Error("one that is not kept is there")
	}
}

// The map does what Go's own does.
func TestLiveMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var m liveMap
	model := map[uint64]int64{}
	for i := range 200_000 {
		addr := uint64(rng.IntN(3000)) * 512
		if addr == 512 {
			addr = 1<<64 - 1
		}
		if i%50_000 > 40_000 { // shrink again
			addr = uint64(rng.IntN(300)) * 512
		}
		if rng.IntN(2) == 0 {
			at, ok := m.room(addr)
			if _, want := model[addr]; ok != want {
				t.Fatalf("address %d: there %v, want %v", addr, ok, want)
			}
			if !ok {
				m.put(at, &entry{addr: addr, size: int64(i)})
				model[addr] = int64(i)
			}
			continue
		}
		at, ok := m.find(addr)
		want, there := model[addr]
		if ok != there || ok && m.slots[at].size != want {
			t.Fatalf("address %d: there %v, want %v", addr, ok, there)
		}
		if ok {
			m.remove(at)
			delete(model, addr)
		}
	}
	n := 0
	m.all(func(e *entry) {
		n++
		if model[e.addr] != e.size {
			t.Errorf("address %d has %d, want %d", e.addr, e.size, model[e.addr])
		}
	})
	if n != len(model) || m.n != n {
		t.Errorf("%d entries, %d counted, want %d", n, m.n, len(model))
	}
}

func TestStackTable(t *testing.T) {
	table := newStackTable(1 << 20)
	var all [][]uint32
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		frames := make([]uint32, rng.IntN(6))
		for i := range frames {
			frames[i] = uint32(rng.IntN(20))
		}
		id := table.fromFrames(frames)
		if int(id) >= len(all) {
			all = append(all, make([][]uint32, int(id)+1-len(all))...)
		}
		if all[id] == nil {
			all[id] = frames
		}
		if !slices.Equal(all[id], frames) || !slices.Equal(table.get(id), frames) {
			t.Fatalf("stack %d is %v and %v", id, table.get(id), frames)
		}
	}
	for i, frames := range all {
		if id := table.fromFrames(frames); int(id) != i {
			t.Errorf("stack %d is %d the second time", i, id)
		}
	}
}

func TestParseTraceback(t *testing.T) {
	f := func(text, name, file string, line int32) {
		t.Helper()
		if n, f, l := parseTraceback(text); n != name || f != file || l != line {
			t.Errorf("%q: got %s %s:%d", text, n, f, l)
		}
	}
	f("  File \"/a/b.py\", line 12, in forward\n    x = y\n", "forward", "/a/b.py", 12)
	f("  File \"/a b/c.py\", line 1, in <module>\n", "<module>", "/a b/c.py", 1)
	f("something else", "something else", "", 0)
	f("  File \"x.py\", line many, in f", "File \"x.py\", line many, in f", "", 0)
	f("", "", "", 0)
}

func TestFramesOfTheViewer(t *testing.T) {
	for _, c := range []struct {
		name, file       string
		python, plumbing bool
	}{
		{"forward", "/m/model.py", true, false},
		{"run_start", "/m/model.py", true, false},
		{"<lambda>", "<string>", true, false},
		{"_start", "??", false, true},
		{"torch::unwind::unwind()", "??", false, true},
		{"_PyEval_EvalFrameDefault", "", false, true},
		{"x", "/usr/src/python/Objects/call.c", false, true},
		{"at::native::add(at::Tensor)", ":0", false, false},
		{"at::add", "RegisterCUDA.cpp", false, false},
		{"execute_native_thread_routine", "thread48.o", false, false},
		{"f", `C:\train\model.py`, true, false},
	} {
		if isPython(c.file) != c.python || isPlumbing(c.name, c.file) != c.plumbing {
			t.Errorf("%s %s: Python %v, left out %v", c.name, c.file, isPython(c.file), isPlumbing(c.name, c.file))
		}
	}
	// Recursion is one frame.
	table := newStackTable(100)
	none := func(uint32) bool { return false }
	for _, c := range []struct{ in, want []uint32 }{
		{[]uint32{1, 2, 3}, []uint32{1, 2, 3}},
		{[]uint32{1, 1, 2}, []uint32{1, 1, 2}},
		{[]uint32{1, 1, 1, 2}, []uint32{1, 2}},
		{[]uint32{3, 1, 1, 1, 1, 1, 2, 2, 1}, []uint32{3, 1, 2, 2, 1}},
	} {
		if got := table.visible(c.in, false, none); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.in, got, c.want)
		}
		if got := table.visible(c.in, true, none); !slices.Equal(got, c.in) {
			t.Errorf("%v: got %v with all frames", c.in, got)
		}
	}
	if got := table.visible([]uint32{1, 2}, false, func(uint32) bool { return true }); len(got) != 2 {
		t.Errorf("a stack of nothing else became %v", got)
	}
}

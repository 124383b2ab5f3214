// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// maker builds profiles out of short texts.
type maker struct {
	p         *profile.Profile
	locations map[string]*profile.Location
	mappings  map[string]*profile.Mapping
}

func newMaker() *maker {
	return &maker{
		p: &profile.Profile{
			SampleType:        []*profile.ValueType{{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}},
			DefaultSampleType: "inuse_space",
			PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 1,
		},
		locations: map[string]*profile.Location{}, mappings: map[string]*profile.Mapping{},
	}
}

// location makes "function@file:line" a Python frame, "function!object" a native one, "!object" one without a name.
func (m *maker) location(text string) *profile.Location {
	if l := m.locations[text]; l != nil {
		return l
	}
	l := &profile.Location{ID: uint64(len(m.p.Location) + 1)}
	function, where, python := strings.Cut(text, "@")
	file := stack.PythonMapping
	if !python {
		function, file, _ = strings.Cut(text, "!")
		l.Address = 0x1000 + uint64(len(m.p.Location))*0x10
	}
	mapping := m.mappings[file]
	if mapping == nil && file != "" {
		mapping = &profile.Mapping{ID: uint64(len(m.p.Mapping) + 1), File: file, Start: 0x1000, Limit: 0x9000, Offset: 0x400}
		if python {
			mapping.Start, mapping.Limit, mapping.Offset = 0, 0, 0
		}
		m.mappings[file] = mapping
		m.p.Mapping = append(m.p.Mapping, mapping)
	}
	l.Mapping = mapping
	if function != "" {
		switch function { // blanks separate frames
		case "NOTE1":
			function = stack.FramesLeftOut
		case "NOTE2":
			function = stack.WalkStopped
		}
		f := &profile.Function{ID: uint64(len(m.p.Function) + 1), Name: function, SystemName: function}
		var line int64
		if python {
			at := strings.LastIndexByte(where, ':')
			f.Filename = where[:at]
			fmt.Sscan(where[at+1:], &line)
		}
		m.p.Function = append(m.p.Function, f)
		l.Line = []profile.Line{{Function: f, Line: line}}
	}
	m.locations[text] = l
	m.p.Location = append(m.p.Location, l)
	return l
}

// sample adds a stack, leaf first, separated by blanks.
func (m *maker) sample(objects, bytes int64, frames string) *maker {
	s := &profile.Sample{Value: []int64{objects, bytes}}
	for _, f := range strings.Fields(frames) {
		s.Location = append(s.Location, m.location(f))
	}
	m.p.Sample = append(m.p.Sample, s)
	return m
}

func text(p *profile.Profile) string {
	var b strings.Builder
	for _, s := range p.Sample {
		fmt.Fprint(&b, s.Value)
		for _, l := range s.Location {
			b.WriteString(" | " + stack.Short(l))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestClean(t *testing.T) {
	f := func(opts stack.Options, frames, want string) {
		t.Helper()
		m := newMaker().sample(2, 200, frames)
		stack.Clean(m.p, opts)
		if err := m.p.CheckValid(); err != nil {
			t.Fatal(err)
		}
		if got := text(m.p); got != "[2 200] "+want+"\n" {
			t.Errorf("%s: got %s want %s", frames, got, want)
		}
	}
	var def stack.Options
	// By mapping, however many there are, named or not.
	f(def, "!/usr/lib/libjemalloc.so.2 !/usr/lib/libjemalloc.so.2 work!/bin/app", "| work app")
	f(def, "prof_backtrace_impl!/l/libjemalloc.so.2 malloc!/l/libjemalloc.so.2 a!/l/libjemalloc.so.2 b!/l/libjemalloc.so.2 work!/bin/app", "| work app")
	f(def, "hook!/opt/libheapwire.so malloc!/opt/libheapwire.so work!/bin/app main!/bin/app", "| work app | main app")
	f(def, "x!/opt/libheapwire_inproc.so work!/bin/app", "| work app")
	f(def, "!/opt/libheapwire.so f@/src/f.py:3", "| f f.py:3")
	// By name, where the allocator is linked into the program.
	f(def, "prof_backtrace_impl!/bin/app je_prof_tctx_create!/bin/app imalloc_body!/bin/app malloc!/bin/app work!/bin/app", "| work app")
	f(def, "je_malloc_default!/bin/app calloc!/bin/app work!/bin/app", "| work app")
	f(def, "imalloc_body.part.0!/bin/app posix_memalign!/bin/app work!/bin/app", "| work app")
	// Only from the leaf, and not what only looks alike.
	f(def, "work!/bin/app malloc!/bin/app main!/bin/app", "| work app | malloc app | main app")
	f(def, "malloc_stats!/bin/app main!/bin/app", "| malloc_stats app | main app")
	f(def, "work!/bin/libmyjemalloc.so main!/bin/app", "| work libmyjemalloc.so | main app")
	f(def, "jemalloc@/src/x.py:1 main!/bin/app", "| jemalloc x.py:1 | main app")
	f(def, "malloc@/src/malloc.py:1", "| malloc malloc.py:1")
	// The interpreter's frames tell what it was doing.
	deep := "malloc!/opt/libheapwire.so list_resize!/usr/lib/libpython3.12.so.1.0 _PyEval!/usr/bin/python3.12 f@/src/f.py:3 g@/src/f.py:9"
	f(def, deep, "| list_resize libpython3.12.so.1.0 | _PyEval python3.12 | f f.py:3 | g f.py:9")
	f(stack.Options{DropInterpreter: true}, deep, "| f f.py:3 | g f.py:9")
	f(stack.Options{DropInterpreter: true}, "list_resize!/usr/lib/libpython3.12.so.1.0 main!/bin/app f@/src/f.py:3", "| list_resize libpython3.12.so.1.0 | main app | f f.py:3")
	f(stack.Options{DropInterpreter: true}, "x!/opt/python-fastjson.so f@/src/f.py:3", "| x python-fastjson.so | f f.py:3")
	f(stack.Options{DropInterpreter: true}, "x!/usr/bin/python3.13t f@/src/f.py:3", "| f f.py:3")
	f(stack.Options{DropInterpreter: true}, "list_resize!/usr/lib/libpython3.12.so.1.0", "| list_resize libpython3.12.so.1.0")
	f(stack.Options{KeepAllocator: true}, "malloc!/opt/libheapwire.so work!/bin/app", "| malloc libheapwire.so | work app")
	// Bytes without any other frame keep the outermost.
	f(def, "a!/l/libjemalloc.so.2 malloc!/l/libjemalloc.so.2", "| malloc libjemalloc.so.2")
}

func TestCleanAddsUpWhatBecomesEqual(t *testing.T) {
	m := newMaker().
		sample(1, 100, "malloc!/l/libjemalloc.so.2 work!/bin/app main!/bin/app").
		sample(5, 500, "other!/bin/app main!/bin/app").
		sample(2, 200, "calloc!/l/libjemalloc.so.2 work!/bin/app main!/bin/app").
		sample(4, 400, "calloc!/l/libjemalloc.so.2 work!/bin/app main!/bin/app")
	m.p.Sample[3].Label = map[string][]string{"thread_name": {"io"}}
	stack.Clean(m.p, stack.Options{})
	want := "[3 300] | work app | main app\n[5 500] | other app | main app\n[4 400] | work app | main app\n"
	if got := text(m.p); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if len(m.p.Location) != 3 || len(m.p.Mapping) != 1 || len(m.p.Function) != 3 {
		t.Errorf("%d locations, %d mappings, %d functions are left, want 3, 1, 3", len(m.p.Location), len(m.p.Mapping), len(m.p.Function))
	}
	if err := m.p.CheckValid(); err != nil {
		t.Error(err)
	}
}

func TestShortAndKey(t *testing.T) {
	f := func(frame, short string) {
		t.Helper()
		if got := stack.Short(newMaker().location(frame)); got != short {
			t.Errorf("%s: got %q, want %q", frame, got, short)
		}
	}
	f("Cache.put@/srv/app/cache.py:44", "Cache.put cache.py:44")
	f("<module>@<frozen_runpy>:7", "<module> <frozen_runpy>:7")
	f("nowhere@:0", "nowhere")
	f("[no stack]!", "[no stack]")
	f("list_resize!/usr/lib/libpython3.12.so.1.0", "list_resize libpython3.12.so.1.0")
	f("!/usr/lib/libfoo.so", "libfoo.so!0x400")
	f("!", "0x1000")
	deleted := newMaker().location("plug!/tmp/plug.so")
	deleted.Mapping.File = "/tmp/plug.so (deleted)"
	if got := stack.Short(deleted); got != "plug plug.so" {
		t.Errorf("got %q", got)
	}
	// The same line is the same key in another process, where functions, addresses and mappings are others.
	a, b := newMaker(), newMaker()
	b.location("other@/x.py:1")
	for _, frame := range []string{"f@/a.py:3", "work!/bin/app"} {
		if x, y := stack.Key(a.location(frame)), stack.Key(b.location(frame)); x != y {
			t.Errorf("%s: keys %q and %q", frame, x, y)
		}
	}
	if stack.Key(a.location("f@/a.py:3")) == stack.Key(a.location("f@/a.py:4")) || stack.Key(a.location("f@/a.py:3")) == stack.Key(a.location("f@/b.py:3")) {
		t.Error("different lines have one key")
	}
}

func example() *profile.Profile {
	return newMaker().
		sample(1, 1000, "list_resize!/usr/bin/python3.12 put@/srv/cache.py:44 handle@/srv/server.py:20 <module>@/srv/main.py:3").
		sample(2, 500, "dict_resize!/usr/bin/python3.12 put@/srv/cache.py:44 handle@/srv/server.py:20 <module>@/srv/main.py:3").
		sample(3, 300, "put@/srv/cache.py:45 handle@/srv/server.py:20 <module>@/srv/main.py:3").
		sample(4, 40, "walk@/srv/tree.py:5 walk@/srv/tree.py:5 walk@/srv/tree.py:5 <module>@/srv/main.py:3").
		sample(5, 20, "native_leaf!/opt/lib.so start_thread!/lib/libc.so.6").
		sample(6, 7, "native_leaf!/opt/lib.so NOTE1@:0 handle@/srv/server.py:20").
		sample(7, 3, "native_leaf!/opt/lib.so NOTE2@:0").
		sample(0, 0, "gone@/srv/gone.py:1").
		p
}

func TestTop(t *testing.T) {
	row := func(r stack.Row) string {
		return fmt.Sprintf("%d/%d %d/%d %s", r.Flat, r.FlatObjects, r.Cum, r.CumObjects, r.Short())
	}
	f := func(sampleType string, n int, want ...string) {
		t.Helper()
		var got []string
		for _, r := range stack.Top(example(), sampleType, n) {
			got = append(got, row(r))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	all := []string{
		"1500/3 1500/3 put cache.py:44",
		"300/3 300/3 put cache.py:45",
		"40/4 40/4 walk tree.py:5", // recursion counts once
		"20/5 30/18 native_leaf lib.so",
		"7/6 1807/12 handle server.py:20",
		"3/7 3/7 [python walk stopped]",
		"0/0 1840/10 <module> main.py:3",
		"0/0 1000/1 list_resize python3.12",
		"0/0 500/2 dict_resize python3.12",
		"0/0 20/5 start_thread libc.so.6",
		"0/0 7/6 [frames left out]",
	}
	f("inuse_space", 0, all...)
	f("", 3, all[:3]...)
	f("no_such_type", 3)
	if top := stack.Top(example(), "inuse_objects", 1); top[0].Function != "[python walk stopped]" || top[0].Flat != 7 || top[0].FlatObjects != 7 {
		t.Errorf("by objects: %+v", top)
	}
	if r := stack.Top(example(), "", 1)[0]; r.File != "/srv/cache.py" || r.Line != 44 || r.Function != "put" || !r.Python {
		t.Errorf("got %+v", r)
	}
}

func TestStacks(t *testing.T) {
	rows := stack.Stacks(example(), "inuse_space", 2)
	if len(rows) != 2 || rows[0].Value != 1000 || rows[0].Objects != 1 || rows[1].Value != 500 {
		t.Fatalf("got %+v", rows)
	}
	if got := rows[0].Frames[rows[0].Charged].String(); got != "put cache.py:44" {
		t.Errorf("charged to %s", got)
	}
	if got := rows[0].Frames[0].String(); got != "list_resize python3.12" {
		t.Errorf("leaf is %s", got)
	}
	if rows := stack.Stacks(example(), "inuse_space", 0); len(rows) != 7 {
		t.Errorf("got %d stacks, want 7", len(rows))
	}
}

func TestFolded(t *testing.T) {
	m := newMaker().
		sample(1, 10, "b!/lib/l.so a;x@/f.py:1").
		sample(1, 5, "c@/f.py:2 a;x@/f.py:1").
		sample(0, 0, "zero@/f.py:2")
	m.p.Sample = append(m.p.Sample, &profile.Sample{Location: m.p.Sample[0].Location, Value: []int64{1, 1}})
	var b strings.Builder
	if err := stack.Folded(&b, m.p, ""); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "a:x f.py:1;b l.so 11\na:x f.py:1;c f.py:2 5\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if err := stack.Folded(&b, m.p, "cpu"); err == nil || !strings.Contains(err.Error(), `"cpu"`) {
		t.Errorf("unknown sample type: %v", err)
	}
}

func TestCompactKeepsWhatIsUsed(t *testing.T) {
	m := newMaker().sample(1, 10, "a@/f.py:1 x!/lib/x.so").sample(1, 5, "b!/lib/y.so")
	m.p.Sample = m.p.Sample[1:]
	stack.Compact(m.p)
	if len(m.p.Location) != 1 || len(m.p.Function) != 1 || len(m.p.Mapping) != 1 || m.p.Mapping[0].File != "/lib/y.so" || m.p.Location[0].ID != 1 {
		t.Errorf("got %v", m.p)
	}
	if err := m.p.CheckValid(); err != nil {
		t.Error(err)
	}
}

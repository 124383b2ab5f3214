// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/symbol"
)

func sums(p *profile.Profile) []int64 {
	out := make([]int64, len(p.SampleType))
	for _, s := range p.Sample {
		for i, v := range s.Value {
			out[i] += v
		}
	}
	return out
}

func TestHeapDump(t *testing.T) {
	lib := uint64(0x7f0000000000)
	d := &dumpgen.Dump{
		SampleBytes: 1,
		Mappings: []dumpgen.Mapping{
			{Start: lib, End: lib + 0x1000, Perms: "r-xp", File: "/opt/libheapwire.so"},
			{Start: lib + 0x2000, End: lib + 0x3000, Perms: "r-xp", File: "/nowhere/libpython3.12.so.1.0"},
		},
		Stacks: []dumpgen.Stack{
			{Frames: []uint64{lib + 0x11, lib + 0x22, lib + 0x2101, dumpgen.Token(1, 44), dumpgen.Token(2, 3)}, Objects: 1, Bytes: 100},
			{Frames: []uint64{lib + 0x33, lib + 0x2101, dumpgen.Token(1, 44), dumpgen.Token(2, 3)}, Objects: 2, Bytes: 200},
		},
		Functions: []dumpgen.Function{{ID: 1, Name: "put", File: "/srv/cache.py", Line: 40}, {ID: 2, Name: "<module>", File: "/srv/main.py", Line: 1}},
		Meta:      []dumpgen.Pair{{Key: "seq", Value: "4"}},
	}
	var text bytes.Buffer
	if err := d.Write(&text); err != nil {
		t.Fatal(err)
	}
	h, err := convert.HeapDump(bytes.NewReader(text.Bytes()), convert.Options{Name: "a.heap", Symbols: &symbol.Resolver{}})
	if err != nil {
		t.Fatal(err)
	}
	var folded strings.Builder
	if err := stack.Folded(&folded, h.Profile, ""); err != nil {
		t.Fatal(err)
	}
	if got, want := folded.String(), "<module> main.py:3;put cache.py:44;libpython3.12.so.1.0!0x100 300\n"; got != want || len(h.Profile.Sample) != 1 {
		t.Errorf("got %d samples\n%swant 1\n%s", len(h.Profile.Sample), got, want)
	}
	if h.Meta.Seq != 4 || h.Symbols.Unnamed != 4 {
		t.Errorf("meta %+v, symbols %+v", h.Meta, h.Symbols)
	}
	if !slices.ContainsFunc(h.Warnings, func(w string) bool { return strings.HasPrefix(w, "/nowhere/libpython3.12.so.1.0: ") }) {
		t.Errorf("no warning about the missing library: %q", h.Warnings)
	}

	h, err = convert.HeapDump(bytes.NewReader(text.Bytes()), convert.Options{Stack: stack.Options{KeepAllocator: true}})
	if err != nil || len(h.Profile.Sample) != 2 || len(h.Warnings) != 0 {
		t.Errorf("with allocator frames: %v, %v", h, err)
	}
	if _, err := convert.HeapDump(strings.NewReader("MZ"), convert.Options{Name: "b.heap"}); !errors.Is(err, jemalloc.ErrNotHeapV2) {
		t.Errorf("got %v", err)
	}
}

// The stacks of giant requests are named and cleaned like those of the profile, and are none of its.
func TestGiants(t *testing.T) {
	lib := uint64(0x7f0000000000)
	frames := []uint64{lib + 0x11, lib + 0x22, lib + 0x2101, dumpgen.Token(1, 44), dumpgen.Token(2, 61)}
	d := &dumpgen.Dump{
		SampleBytes: 1,
		Mappings: []dumpgen.Mapping{
			{Start: lib, End: lib + 0x1000, Perms: "r-xp", File: "/opt/libheapwire.so"},
			{Start: lib + 0x2000, End: lib + 0x3000, Perms: "r-xp", File: "/nowhere/libpython3.12.so.1.0"},
			{Start: lib + 0x4000, End: lib + 0x5000, Perms: "r-xp", File: "/nowhere/onlygiants.so"},
		},
		Stacks: []dumpgen.Stack{{Frames: []uint64{lib + 0x11, lib + 0x2101, dumpgen.Token(2, 61)}, Objects: 1, Bytes: 100}},
		Giants: []dumpgen.Giant{
			{Time: 1, TID: 9, Bytes: 962174058496, Call: "malloc", Thread: "listener", Frames: frames},
			{Time: 1, TID: 9, Bytes: 962174058496, Call: "malloc", Thread: "listener", Frames: frames},
			{Time: 2, TID: 9, Bytes: 1 << 30, Call: "calloc", Frames: []uint64{lib + 0x11, lib + 0x4101}},
			{Time: 3, TID: 9, Bytes: 1 << 31, Call: "realloc"},
			{Bytes: 7, Call: "malloc", Frames: frames[:3]}, // equal ones of which nothing is known stay two
			{Bytes: 7, Call: "malloc", Frames: frames[:3]},
		},
		Functions: []dumpgen.Function{{ID: 1, Name: "read_message", File: "/srv/server.py", Line: 41}, {ID: 2, Name: "serve", File: "/srv/server.py", Line: 60}},
	}
	var text bytes.Buffer
	if err := d.Write(&text); err != nil {
		t.Fatal(err)
	}
	render := func(h *convert.Heap) string {
		var b strings.Builder
		for _, g := range h.Giants {
			for _, l := range g.Stack {
				b.WriteString(stack.Short(l) + ";")
			}
			b.WriteString(" " + g.Line() + "\n")
		}
		return b.String()
	}
	h, err := convert.HeapDump(bytes.NewReader(text.Bytes()), convert.Options{Name: "a.heap", Symbols: &symbol.Resolver{}})
	if err != nil {
		t.Fatal(err)
	}
	python := "read_message server.py:44;serve server.py:61; request of 896.1 GiB by malloc in thread 'listener' at read_message server.py:44 < serve server.py:61\n"
	rest := "onlygiants.so!0x100; request of 1.0 GiB by calloc in thread 9 at onlygiants.so!0x100\n" +
		"[no stack]; request of 2.0 GiB by realloc in thread 9 at [no stack]\n" +
		strings.Repeat("libpython3.12.so.1.0!0x100; request of 7 B by malloc in thread 0 at libpython3.12.so.1.0!0x100\n", 2)
	one := "libpython3.12.so.1.0!0x100;" + python
	if got, want := render(h), one+one+rest; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for _, l := range h.Giants[0].Stack {
		if len(l.Line) == 0 {
			t.Errorf("%s was not named", stack.Short(l))
		}
	}
	var folded strings.Builder
	if err := stack.Folded(&folded, h.Profile, ""); err != nil || folded.String() != "serve server.py:61;libpython3.12.so.1.0!0x100 100\n" {
		t.Errorf("profile: %v\n%s", err, &folded)
	}
	if err := h.Profile.CheckValid(); err != nil {
		t.Error(err)
	}
	// Each file that is missing is told once, though both need one of them.
	warnings := strings.Join(h.Warnings, "\n")
	for _, file := range []string{"/nowhere/libpython3.12.so.1.0: ", "/nowhere/onlygiants.so: "} {
		if n := strings.Count(warnings, file); n != 1 {
			t.Errorf("%s is warned of %d times:\n%s", file, n, warnings)
		}
	}
	if h.Symbols.Unnamed != 2 || len(h.Symbols.Files) != 2 {
		t.Errorf("symbols of the profile: %+v", h.Symbols)
	}

	h, err = convert.HeapDump(bytes.NewReader(text.Bytes()), convert.Options{Stack: stack.Options{DropInterpreter: true}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := render(h), python+python+rest; got != want {
		t.Errorf("without the interpreter: got\n%swant\n%s", got, want)
	}
}

// Taking frames off loses no bytes.
func TestNothingIsLostOnTheWay(t *testing.T) {
	dir := os.Getenv("HEAPWIRE_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "data")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "heapdumps", "own", "*.heap"))
	if len(files) == 0 {
		t.Skipf("no dumps in %s: set HEAPWIRE_TESTDATA to the folder that has heapdumps/", dir)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dump, err := jemalloc.Parse(bytes.NewReader(text), jemalloc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := convert.HeapDump(bytes.NewReader(text), convert.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sums(h.Profile), sums(dump.Profile); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", file, got, want)
		}
		for _, s := range h.Profile.Sample {
			if m := s.Location[0].Mapping; m != nil && strings.Contains(m.File, "jemalloc") {
				t.Errorf("%s: a stack still begins in %s", file, m.File)
				break
			}
		}
		if err := h.Profile.CheckValid(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

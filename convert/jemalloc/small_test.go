// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"math"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
)

// smallDump is a dump of one live stack that says nothing of its own interval, with the given lines of HEAPWIRE_OBJECTS.
func smallDump(lines string) string {
	return "heap_v2/1\n  t*: 9: 900 [0: 0]\n@ 0x1110 " + at(2, 60) + "\n  t*: 9: 900 [0: 0]\n" + maps +
		"\nHEAPWIRE_META: 1\nreason=interval\n\nHEAPWIRE_BUILD_IDS: 1\n1000-2000 00c0ffee /bin/app\n\nHEAPWIRE_OBJECTS: 1\n" + lines + "\n" + giantFrames
}

func TestSmallObjectsAreAddedToTheHeap(t *testing.T) {
	const own = "9 900 : | /bin/app+0x10f | <serve /srv/server.py:60 def 60>\n"
	f := func(lines string, garbage int, want string) *jemalloc.Dump {
		t.Helper()
		dump := parse(t, smallDump(lines))
		if got := samples(dump.Profile); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		if r := dump.Report; r.GarbageLines != garbage || r.Truncated || r.ShareFound != 1 || r.Estimate != [4]float64{0, 0, 9, 900} {
			t.Errorf("%d lines of garbage, want %d; report %+v", r.GarbageLines, garbage, r)
		}
		if n := len(dump.Profile.Location); n > 3 {
			t.Errorf("%d locations", n)
		}
		return dump
	}
	record := "@ " + at(1, 44) + "\n  t*: 3: 144 [0: 0]\n"
	const line = " : | <read_message /srv/server.py:44 def 41>\n"
	f("", 0, own)
	f("heap_v2/1\n", 0, own)
	f("heap_v2/1\n"+record, 0, own+"3 144"+line)
	// The interval is the section's own, and the formula that of every stack: 48 bytes at 4096 are one in 85.8.
	dump := f("heap_v2/4096\n"+record, 0, own+"258 12360"+line)
	if r := dump.Report; r.SmallStacks != 1 || math.Abs(r.SmallObjects-257.5) > 0.1 || math.Abs(r.SmallBytes-12360) > 1 {
		t.Errorf("report: %d records, %f objects, %f bytes", r.SmallStacks, r.SmallObjects, r.SmallBytes)
	}
	// Records of one stack and several sizes are scaled each by itself; several intervals may follow each other.
	f("heap_v2/4096\n"+record+"@ "+at(1, 44)+"\n  t*: 1: 512 [0: 0]\n", 0, own+"266 16717"+line)
	f("heap_v2/4096\n"+record+"heap_v2/1\n"+record, 0, own+"261 12504"+line)
	// A stack that malloc has too is one sample.
	f("heap_v2/1\n@ 0x1110 "+at(2, 60)+"\n  t*: 1: 16 [0: 0]\n", 0, "10 916 : | /bin/app+0x10f | <serve /srv/server.py:60 def 60>\n")
	f("heap_v2/1\n@\n  t*: 1: 16 [0: 0]\n", 0, own+"1 16 : | 0x0<[no stack] :0 def 0>\n")

	// Garbage costs itself.
	for _, bad := range []string{
		"  t*: 3: 144 [0: 0]\n", "@ " + at(1, 44) + "\n  t*: 3: x [0: 0]\n", "@ " + at(1, 44) + "\n  t*: 3: 0 [0: 0]\n",
		"@ " + at(1, 44) + "\n  t*: 1: 18446744073709551615 [0: 0]\n",
	} {
		f("heap_v2/1\n"+bad+record, 1, own+"3 144"+line)
		f("heap_v2/1\n"+record+bad, 1, own+"3 144"+line)
	}
	// Without an interval nothing can be said.
	f(record, 1, own)
	f("heap_v2/0\n"+record, 2, own)
	f("heap_v2/x\n"+record, 2, own)
	f("heap_v2/1\n"+record+"heap_v2/-1\n"+record, 2, own+"3 144"+line)
	dump = f("heap_v2/1\n@ "+at(1, 44)+"\n"+record, 0, own+"3 144"+line)
	if dump.Report.CutStacks != 1 {
		t.Errorf("%d stacks without counts, want 1", dump.Report.CutStacks)
	}
	if dump = f("heap_v2/1\nrubbish\n"+record, 0, own+"3 144"+line); dump.Report.UnknownLines != 1 {
		t.Errorf("%d unknown lines, want 1", dump.Report.UnknownLines)
	}
}

func TestSmallObjectSectionsThatAreOdd(t *testing.T) {
	record := "@ 0x1110\n  t*: 3: 144 [0: 0]\n"
	f := func(text string, want int, warning string) {
		t.Helper()
		dump := parse(t, text)
		w := strings.Join(dump.Report.Warnings(), "\n")
		if dump.Report.SmallStacks != want || (w == "") != (warning == "") || !strings.Contains(w, warning) {
			t.Errorf("got %d records, warnings %q, want %d and %q", dump.Report.SmallStacks, w, want, warning)
		}
	}
	whole := smallDump("heap_v2/1\n" + record + record)
	start := strings.Index(whole, "HEAPWIRE_OBJECTS")
	f(whole, 2, "")
	f(whole[:start]+giantFrames, 0, "")
	f(whole[:start]+"HEAPWIRE_OBJECTS: 2\n"+record+"\n"+giantFrames, 0, `HEAPWIRE_OBJECTS version "2" is not known`)
	f(strings.Replace(whole, record+"\n", record, 1), 2, "HEAPWIRE_OBJECTS is not closed by an empty line: rows may be missing: small Python objects may be missing")
	f(whole[:strings.LastIndex(whole, "[0: 0]")+3], 1, "HEAPWIRE_OBJECTS is not whole: small Python objects are missing; every stack of malloc is there")
	f(whole[:start], 0, "every stack of malloc is there")
	f(whole[:strings.LastIndex(whole, "/srv")], 2, "HEAPWIRE_FRAMES is not whole; every stack is there")
	f(whole[:start]+giantFrames+"HEAPWIRE_OBJECTS: 1\nheap_v2/1\n"+record+"\n", 1, "") // frames may come first
}

// With threads kept apart, small objects go with the threads of the stack they share.
func TestSmallObjectsAndThreads(t *testing.T) {
	_, text := generate(t, dumpgen.Options{Stacks: 30, PythonDepth: 8, Threads: 3, Small: 40})
	whole := parse(t, text)
	dump, err := jemalloc.Parse(strings.NewReader(text), jemalloc.Options{KeepThreads: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sums(dump.Profile), sums(whole.Profile); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

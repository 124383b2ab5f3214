// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
)

// giants writes giant requests for people, a line each.
func giants(dump *jemalloc.Dump) string {
	var b strings.Builder
	for _, g := range dump.Giants {
		fmt.Fprintf(&b, "giant %d tid %d: %d by %s in %q:", g.Time.UnixNano(), g.TID, g.Bytes, g.Call, g.Thread)
		for _, l := range g.Stack {
			b.WriteString(" | " + location(l))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

const giantFrames = "HEAPWIRE_FRAMES: 1\n1\tread_message\t/srv/server.py\t41\n2\tserve\t/srv/server.py\t60\n3\tread_message\t/srv/server.py\t41\n\n"

// giantDump is a dump with one live stack and the given rows.
func giantDump(rows string) string {
	return header + "@ 0x1110 " + at(2, 60) + "\n  t*: 9: 900 [0: 0]\n" + maps +
		"\nHEAPWIRE_META: 1\nreason=giant\n\nHEAPWIRE_BUILD_IDS: 1\n1000-2000 00c0ffee /bin/app\n\nHEAPWIRE_GIANT: 1\n" + rows + "\n" + giantFrames
}

func at(id uint32, line int) string { return fmt.Sprintf("0x%x", dumpgen.Token(id, line)) }

func TestGiants(t *testing.T) {
	f := func(rows string, garbage int, want string) *jemalloc.Dump {
		t.Helper()
		dump := parse(t, giantDump(rows))
		if got := giants(dump); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		if dump.Report.GarbageLines != garbage || dump.Report.Truncated {
			t.Errorf("%d lines of garbage, want %d; %q", dump.Report.GarbageLines, garbage, dump.Report.Warnings())
		}
		// They are no live memory, and nothing of theirs is in the profile.
		if got, want := samples(dump.Profile), "9 900 : | /bin/app+0x10f | <serve /srv/server.py:60 def 60>\n"; got != want {
			t.Errorf("profile: got %swant %s", got, want)
		}
		if n := len(dump.Profile.Location) + len(dump.Profile.Function) + len(dump.Profile.Mapping); n != 2+1+2 {
			t.Errorf("the profile has %d locations, functions and mappings, want 5", n)
		}
		if (dump.GiantStacks == nil) != (want == "") {
			t.Fatalf("profile of the giants: %v", dump.GiantStacks)
		}
		if dump.GiantStacks != nil {
			if err := dump.GiantStacks.CheckValid(); err != nil {
				t.Error(err)
			}
		}
		return dump
	}
	stacks := "0x1110 " + at(1, 44) + " " + at(2, 61)
	resolved := " | /bin/app+0x10f | <read_message /srv/server.py:44 def 41> | <serve /srv/server.py:61 def 60>\n"
	one := "giant 1764400000000000001 tid 4243: 962174058496 by malloc in \"listener\":" + resolved
	row := "1764400000000000001\t4243\t962174058496\tmalloc\tlistener\t" + stacks + "\n"
	f("", 0, "")
	f(row, 0, one)
	dump := f(row+row, 0, one+one) // equal ones are two

	// The mapping is there with its build id, Python frames have no address, and equal functions are one.
	l := dump.Giants[0].Stack
	if m := l[0].Mapping; m == nil || m.BuildID != "00c0ffee" || l[0].Address != 0x110f || l[1].Address != 0 {
		t.Errorf("locations %v", l)
	}
	dump = f("1\t2\t3\tmalloc\tx\t"+at(1, 44)+"\n1\t2\t3\tmalloc\tx\t"+at(3, 44)+"\n", 0,
		strings.Repeat("giant 1 tid 2: 3 by malloc in \"x\": | <read_message /srv/server.py:44 def 41>\n", 2))
	if a, b := dump.Giants[0].Stack[0], dump.Giants[1].Stack[0]; a != b {
		t.Errorf("the same line by two ids is two locations: %v and %v", a, b)
	}

	// No name, no stack, neither; the blanks at the end of a line are lost before.
	f("5\t7\t18446744073709551615\trealloc\t\t"+stacks+"\n", 0, "giant 5 tid 7: 18446744073709551615 by realloc in \"\":"+resolved)
	f("5\t7\t100\tcalloc\tio pool\t\n", 0, "giant 5 tid 7: 100 by calloc in \"io pool\": | 0x0<[no stack] :0 def 0>\n")
	f("5\t7\t100\tcalloc\t\t\n", 0, "giant 5 tid 7: 100 by calloc in \"\": | 0x0<[no stack] :0 def 0>\n")
	f("0\t0\t0\tpvalloc\todd\\tname\\\\\xff\t0x7110 "+at(99, 3)+" "+at(0, 4)+" 0x5079ffffffffffff 0x5079fffffffffffe\n", 0,
		"giant 0 tid 0: 0 by pvalloc in \"odd\\tname\\\\\uFFFD\": | 0x710f | <[unnamed python function 99] :3 def 0> | "+
			"<[unknown python function] :4 def 0> | <[frames left out] :0 def 0> | <[python walk stopped] :0 def 0>\n")

	// Garbage costs itself; a word that is no address costs the word.
	for _, bad := range []string{
		"x\t2\t3\tmalloc\tx\t0x1\n", "1\tx\t3\tmalloc\tx\t0x1\n", "1\t2\tx\tmalloc\tx\t0x1\n", "1\t2\t-3\tmalloc\tx\t0x1\n",
		"1\t2\t3\t\tx\t0x1\n", "1\t2\t3\n", "rubbish\n", "1\t2\t18446744073709551616\tmalloc\tx\t0x1\n",
		"9223372036854775808\t2\t3\tmalloc\tx\t0x1\n", "1\t9223372036854775808\t3\tmalloc\tx\t0x1\n", "1 \t2\t3\tmalloc\tx\t0x1\n",
	} {
		f(bad+row, 1, one)
		f(row+bad, 1, one)
	}
	f("1\t2\t3\tmalloc\tx\t0x1110\t0xzz 0x1200\n", 1, "giant 1 tid 2: 3 by malloc in \"x\": | /bin/app+0x10f | /bin/app+0x1ff\n")
	f(strings.TrimSuffix(row, "\n")+strings.Repeat(" 0x1110", 200_000)+"\n"+row, 1, one) // longer than a line may be

	// What is kept is bounded.
	dump = f(strings.Repeat(row, 300), 0, strings.Repeat(one, 256))
	if w := strings.Join(dump.Report.Warnings(), "\n"); dump.Report.GiantsLeftOut != 44 || !strings.Contains(w, "44 giant requests beyond the first 256 left out") {
		t.Errorf("%d left out, warnings %s", dump.Report.GiantsLeftOut, w)
	}
}

// A section that is not whole keeps its whole rows; one that is not there is nothing odd; one of another version is told.
func TestGiantSectionsThatAreOdd(t *testing.T) {
	row := "5\t7\t100\tcalloc\tx\t0x1110\n"
	f := func(text string, wantGiants int, warning string) {
		t.Helper()
		dump := parse(t, text)
		w := strings.Join(dump.Report.Warnings(), "\n")
		if len(dump.Giants) != wantGiants || (w == "") != (warning == "") || !strings.Contains(w, warning) {
			t.Errorf("got %d giants, warnings %q, want %d and %q", len(dump.Giants), w, wantGiants, warning)
		}
	}
	whole := giantDump(row + row)
	start := strings.Index(whole, "HEAPWIRE_GIANT")
	f(whole, 2, "")
	f(whole[:start]+giantFrames, 0, "")
	f(whole[:start]+"HEAPWIRE_GIANT: 2\n"+row+"\n"+giantFrames, 0, `HEAPWIRE_GIANT version "2" is not known`)
	f(strings.Replace(whole, row+"\n", row, 1), 2, "HEAPWIRE_GIANT is not closed by an empty line: rows may be missing: giant requests may be missing")
	f(whole[:strings.LastIndex(whole, "0x1110\n")+4], 1, "HEAPWIRE_GIANT is not whole; every stack of malloc is there")
	// Frames may come first.
	f(whole[:start]+giantFrames+"HEAPWIRE_GIANT: 1\n"+row+"\n", 1, "")
}

func TestGiantsOfGeneratedDumps(t *testing.T) {
	d, text := generate(t, dumpgen.Options{Stacks: 20, PythonDepth: 10, Giants: 16, Threads: 3})
	dump := parse(t, text)
	if len(dump.Giants) != 16 || len(dump.Report.Warnings()) > 0 {
		t.Fatalf("%d giants, warnings %q", len(dump.Giants), dump.Report.Warnings())
	}
	if m := dump.Meta; m.Reason != "giant" || m.Trigger != fmt.Sprintf("request of %d", d.Giants[15].Bytes) || m.Figures["giant_requests"] != 16 {
		t.Errorf("meta %+v", m)
	}
	for i, g := range dump.Giants {
		w := d.Giants[i]
		if g.Time.UnixNano() != w.Time || g.TID != w.TID || g.Bytes != w.Bytes || g.Call != w.Call || g.Thread != w.Thread {
			t.Errorf("giant %d: got %+v, want %+v", i, g, w)
		}
		// It has the stack of a sample, resolved by the same code.
		var got, want []string
		for k := range g.Stack {
			got, want = append(got, location(g.Stack[k])), append(want, location(dump.Profile.Sample[i].Location[k]))
		}
		if !slices.Equal(got, want) || len(got) != len(w.Frames) {
			t.Errorf("giant %d: got %v, want %v", i, got, want)
		}
	}
	d.Giants, d.Meta = nil, nil
	if got, want := samples(dump.Profile), samples(parse(t, write(t, d)).Profile); got != want {
		t.Errorf("the profile is another one with giants:\n%swithout\n%s", got, want)
	}
}

func TestGiantLine(t *testing.T) {
	python := "0x1110 0x1200 " + at(1, 44) + " " + at(2, 61)
	f := func(row, want string) {
		t.Helper()
		if got := parse(t, giantDump(row+"\n")).Giants[0].Line(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f("1\t9\t962174058496\tmalloc\tlistener\t"+python, "request of 896.1 GiB by malloc in thread 'listener' at read_message server.py:44 < serve server.py:61")
	f("1\t9\t1073741824\tposix_memalign\t\t"+python, "request of 1.0 GiB by posix_memalign in thread 9 at read_message server.py:44 < serve server.py:61")
	f("1\t9\t18446744073709551615\tcalloc\ta\\nb\t0x1110 0x1200", "request of 16.0 EiB by calloc in thread 'a b' at app!0x10f < app!0x1ff")
	f("1\t9\t1073741823\tmalloc\tx\t", "request of 1.0 GiB by malloc in thread 'x' at [no stack]")
	f("1\t9\t1023\tmalloc\tx\t", "request of 1023 B by malloc in thread 'x' at [no stack]")
	f("1\t9\t1024\tmalloc\tx\t", "request of 1.0 KiB by malloc in thread 'x' at [no stack]")
	long := "1\t9\t1048576\tmalloc\tx\t" + at(1, 44) + strings.Repeat(" "+at(2, 61), 9)
	f(long, "request of 1.0 MiB by malloc in thread 'x' at read_message server.py:44"+strings.Repeat(" < serve server.py:61", 7)+" < (2 more)")
	f(strings.TrimSuffix(long, " "+at(2, 61)+" "+at(2, 61)), "request of 1.0 MiB by malloc in thread 'x' at read_message server.py:44"+strings.Repeat(" < serve server.py:61", 7))
}

// Times and sizes at the ends of their range survive.
func TestGiantExtremes(t *testing.T) {
	dump := parse(t, giantDump(fmt.Sprintf("%d\t%d\t%d\tmalloc\tx\t0x1\n", int64(math.MaxInt64), int64(math.MaxInt64), uint64(math.MaxUint64))))
	if g := dump.Giants[0]; !g.Time.Equal(time.Unix(0, math.MaxInt64)) || g.TID != math.MaxInt64 || g.Bytes != math.MaxUint64 {
		t.Errorf("got %+v", g)
	}
	if v := dump.GiantStacks.Sample[0].Value; v[0] != 1 || v[1] != 1<<60 {
		t.Errorf("values %v", v)
	}
}

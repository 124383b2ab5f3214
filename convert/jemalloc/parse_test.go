// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/stack"
)

// render writes a profile for people: types, then each sample's values, labels and frames, leaf first.
func render(p *profile.Profile) string {
	var b strings.Builder
	for i, t := range p.SampleType {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s/%s", t.Type, t.Unit)
	}
	fmt.Fprintf(&b, "\nperiod %s/%s %d, time %d, duration %d\n", p.PeriodType.Type, p.PeriodType.Unit, p.Period, p.TimeNanos, p.DurationNanos)
	b.WriteString(samples(p))
	for _, m := range p.Mapping {
		fmt.Fprintf(&b, "mapping %x-%x +%x %q %s\n", m.Start, m.Limit, m.Offset, m.File, m.BuildID)
	}
	return b.String()
}

func samples(p *profile.Profile) string {
	var b strings.Builder
	for _, s := range p.Sample {
		for _, v := range s.Value {
			fmt.Fprintf(&b, "%d ", v)
		}
		if len(s.Label) > 0 {
			fmt.Fprintf(&b, "%v ", s.Label)
		}
		b.WriteByte(':')
		for _, l := range s.Location {
			b.WriteString(" | " + location(l))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func location(l *profile.Location) string {
	where := fmt.Sprintf("%#x", l.Address)
	if l.Mapping != nil {
		where = fmt.Sprintf("%s+%#x", l.Mapping.File, l.Address-l.Mapping.Start+l.Mapping.Offset)
	}
	if stack.IsPython(l) {
		where = ""
	}
	for _, line := range l.Line {
		f := line.Function
		where += fmt.Sprintf("<%s %s:%d def %d>", f.Name, f.Filename, line.Line, f.StartLine)
	}
	return where
}

func parse(t *testing.T, text string) *jemalloc.Dump {
	t.Helper()
	dump, err := jemalloc.Parse(strings.NewReader(text), jemalloc.Options{Name: "x.heap"})
	if err != nil {
		t.Fatal(err)
	}
	if err := dump.Profile.CheckValid(); err != nil {
		t.Fatal(err)
	}
	return dump
}

const (
	header = "heap_v2/1\n  t*: 9: 900 [0: 0]\n"
	maps   = "\nMAPPED_LIBRARIES:\n1000-2000 r-xp 00000000 fe:00 1      /bin/app\n9000-a000 rw-p 00000000 00:00 0 [stack]\n"
)

func TestStacks(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := samples(parse(t, text).Profile); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	// The last stack: felixge/pprofutils loses it.
	one := "3 96 : | /bin/app+0x10f\n"
	f(header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, one)
	f(header+"@ 0x1110\n  t*: 3: 96 [0: 0]"+maps, one)
	f(header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n  t0: 3: 96 [0: 0]\n"+maps, one)
	f(header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n", "3 96 : | 0x110f\n")
	f(header+"@ 0x1110\n  t*: 3: 96 [0: 0]", "3 96 : | 0x110f\n")
	f(header+"@ 0x1200\n  t*: 1: 8 [0: 0]\n@ 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, "1 8 : | /bin/app+0x1ff\n"+one)

	// Line ends and blanks that copies have; lines before the header; names of threads; unknown lines.
	f(strings.ReplaceAll(header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, "\n", "\r\n"), one)
	f(strings.ReplaceAll(header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, "\n", "  \t\n"), one)
	f("<jemalloc>: Leak approximation summary: ~96 bytes, ~3 objects, >= 1 contexts\n<jemalloc>: Run jeprof on dump output for leak detail\n"+
		header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, one)
	f(header+"  t0: 3: 96 [0: 0] io pool 0\n@ 0x1110\n  t*: 3: 96 [0: 0]\n  f: 1 2 3 4 5 6\n"+maps, one)
	f(header+"@\t0x1110   \n\tt*:  3:  96  [ 0:  0]\n"+maps, one)
	f(header+"@ 0x1110\n\n  t*: 3: 96 [0: 0]\n\n"+maps, one)

	// Return addresses belong to what lies before them: a call that ends its mapping, or begins one.
	f(header+"@ 0x2000\n  t*: 3: 96 [0: 0]\n"+maps, "3 96 : | /bin/app+0xfff\n")
	f(header+"@ 0x1000\n  t*: 3: 96 [0: 0]\n"+maps, "3 96 : | 0xfff\n")

	// A bare @ keeps its bytes; equal stacks are one.
	f(header+"@\n  t*: 1: 8 [0: 0]\n@ 0x1110\n  t*: 3: 96 [0: 0]\n@ \n  t*: 2: 24 [0: 0]\n"+maps, "3 32 : | 0x0<[no stack] :0 def 0>\n"+one)
	f(header+"@ 0x1110 0x1200\n  t*: 1: 8 [0: 0]\n@ 0x1110 0x1200\n  t*: 2: 88 [0: 0]\n"+maps, "3 96 : | /bin/app+0x10f | /bin/app+0x1ff\n")
	f(header+"@ 0x1110 0x1200\n  t*: 1: 8 [0: 0]\n@ 0x1200 0x1110\n  t*: 2: 88 [0: 0]\n"+maps,
		"1 8 : | /bin/app+0x10f | /bin/app+0x1ff\n2 88 : | /bin/app+0x1ff | /bin/app+0x10f\n")

	// The last frame may be no address (jemalloc PR #2610); 0 is kept too.
	f(header+"@ 0x1110 0xd08800000000000\n  t*: 3: 96 [0: 0]\n"+maps, "3 96 : | /bin/app+0x10f | 0xd087fffffffffff\n")

	// Nothing live is nothing to show, unless something was allocated.
	f(header+"@ 0x1110\n  t*: 0: 0 [0: 0]\n"+maps, "")
	f(header+"@ 0x1110\n  t*: 0: 0 [5: 400]\n@ 0x1200\n  t*: 1: 8 [2: 16]\n"+maps, "5 400 0 0 : | /bin/app+0x10f\n2 16 1 8 : | /bin/app+0x1ff\n")

	// A line that cannot be read costs itself.
	bad := func(counts string) {
		t.Helper()
		f(header+"@ 0x1200\n  t*: "+counts+"\n@ 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, one)
	}
	bad("x: 8 [0: 0]")
	bad("1: [0: 0]")
	bad("1: 8")
	bad("1: 8 [0: 0")
	bad("1: 8 [0: 0] tail")
	bad("-1: 8 [0: 0]")
	bad("18446744073709551616: 8 [0: 0]")
	bad("1: 99999999999999999999 [0: 0]")
	bad("1: 18446744073709551615 [0: 0]") // fits 64 bits, but no machine holds it
	bad("4: 0 [0: 0]")                    // objects of no bytes
	f(header+"@ 0x1110 0xzz 0x1200\n  t*: 3: 96 [0: 0]\n"+maps, "3 96 : | /bin/app+0x10f | /bin/app+0x1ff\n")
	f(header+"@ 0x11111111111111110 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, one)

	// An @ without counts never lends its counts to another.
	f(header+"@ 0x1200\n@ 0x1110\n  t*: 3: 96 [0: 0]\n"+maps, one)
	f(header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n  t*: 7: 777 [0: 0]\n"+maps, one)
	f(header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n@ 0x1200"+maps, one)
}

func TestScaling(t *testing.T) {
	f := func(sampleBytes, objects, size int64, want float64) {
		t.Helper()
		text := fmt.Sprintf("heap_v2/%d\n@ 0x1110\n  t*: %d: %d [0: 0]\n", sampleBytes, objects, objects*size)
		v := parse(t, text).Profile.Sample[0].Value
		if math.Abs(float64(v[0])-want) > 0.5 || math.Abs(float64(v[1])-want*float64(size)) > 0.5 {
			t.Errorf("%d objects of %d at %d: got %v, want %f and %f", objects, size, sampleBytes, v, want, want*float64(size))
		}
	}
	// Worked out with 50 digits: n / (1 - exp(-size/R)).
	f(1, 1000, 64, 1000)
	f(524288, 1, 16, 32768.5000025431)
	f(524288, 1, 8, 65536.5000012716)
	f(524288, 3, 48, 32769.5000228882)
	f(131072, 4, 8388608, 4)
	f(524288, 7, 524288, 11.0738376895281)
	f(1<<40, 1, 16, 1<<36+0.5)
	// Each line is scaled by its own ratio before equal stacks are added.
	p := parse(t, "heap_v2/524288\n@ 0x1110\n  t*: 1: 16 [0: 0]\n@ 0x1110\n  t*: 1: 4194304 [0: 0]\n"+maps).Profile
	if got, want := samples(p), "32770 4720008 : | /bin/app+0x10f\n"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
	// Both pairs have their own ratio.
	p = parse(t, "heap_v2/524288\n@ 0x1110\n  t*: 1: 4194304 [2: 4194320]\n"+maps).Profile
	if got, want := samples(p), "2 4272574 1 4195712 : | /bin/app+0x10f\n"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestMappings(t *testing.T) {
	f := func(maps, want string) {
		t.Helper()
		p := parse(t, header+"@ 0x1110\n  t*: 3: 96 [0: 0]\n\nMAPPED_LIBRARIES:\n"+maps).Profile
		if got := samples(p); got != "3 96 : | "+want+"\n" {
			t.Errorf("got %swant %s", got, want)
		}
	}
	f("1000-2000 r-xp 00000000 fe:00 73259                      /a b/lib c.so\n", "/a b/lib c.so+0x10f")
	f("1000-2000 r-xp 00003000 08:01 73259 /lib.so (deleted)\n", "/lib.so (deleted)+0x310f")
	f("1000-2000 r-xp 00000000 00:00 0 \n", "+0x10f")
	f("1000-2000 r-xp 00000000 00:00 0\n", "+0x10f")
	f("1000-2000 r-xp 00000000 00:00 0 [vdso]\n", "[vdso]+0x10f")
	f("1000-2000 rwxp 00000000 00:00 0 [anon:jit code]\n", "[anon:jit code]+0x10f")
	f("3000-4000 r-xp 0 fe:00 1 /z\n1000-2000 r-xp 0 fe:00 1 /unsorted\n", "/unsorted+0x10f")
	f("00001000-00002000: /macos/lib with blank.dylib\n", "/macos/lib with blank.dylib+0x10f")
	f("2000-1000 r-xp 0 fe:00 1 /backward\n", "0x110f")
	f("what is this\n1000-2000 r-xp 0 fe:00 1 /lib.so\n", "/lib.so+0x10f")
	f("1000-110f r-xp 0 fe:00 1 /ends_before\n", "0x110f")
	f("1000-1110 r-xp 0 fe:00 1 /holds_it\n", "/holds_it+0x10f")
	f("1000-1100 r-xp 0 fe:00 1 /before\n1200-1300 r-xp 0 fe:00 1 /behind\n", "0x110f")
	f("1000-2000 r-xp 0 fe:00 1 /lib\xff.so\n", "/lib\uFFFD.so+0x10f")

	// Two libraries with equal offsets are two locations (rust-jemalloc-pprof makes one of them).
	p := parse(t, header+"@ 0x1110 0x3110\n  t*: 3: 96 [0: 0]\n\nMAPPED_LIBRARIES:\n1000-2000 r-xp 0 fe:00 1 /a.so\n3000-4000 r-xp 0 fe:00 1 /b.so\n").Profile
	if got, want := samples(p), "3 96 : | /a.so+0x10f | /b.so+0x10f\n"; got != want {
		t.Errorf("got %swant %s", got, want)
	}
	if len(p.Location) != 2 || len(p.Mapping) != 2 {
		t.Errorf("got %d locations in %d mappings, want 2 in 2", len(p.Location), len(p.Mapping))
	}
}

const sections = `
HEAPWIRE_META: 1
seq=12
reason=pressure
time_unix_nano=1764400000000000001
interval_ns=60000000000
sample_bytes=524288
prof_accum=0
unbiased=1
step=-3
allocated=1000
rss=2000
cgroup_max=3000
samples=77
python=3.12.1
python_frames=off: unknown interpreter = odd
new_key=text

HEAPWIRE_BUILD_IDS: 1
1000-3000 00c0ffee /bin/app
5000-6000 - /lib/none.so

HEAPWIRE_FRAMES: 1
1	Trainer.step	/src/train.py	10
2	odd\tname\\n	/src/a\nb.py	0
3	Trainer.step	/src/train.py	10

`

func TestSections(t *testing.T) {
	token := func(id, line uint64) string { return fmt.Sprintf("0x%x", 0x5079<<48|id<<22|line) }
	text := header +
		"@ 0x1110 " + token(1, 57) + " " + token(2, 4) + " 0x5079ffffffffffff 0x5079fffffffffffe\n  t*: 1: 10 [0: 0]\n" +
		"@ 0x1110 " + token(3, 57) + " " + token(2, 4) + " 0x5079ffffffffffff 0x5079fffffffffffe\n  t*: 2: 20 [0: 0]\n" +
		"@ " + token(0, 9) + " " + token(44, 8) + " " + token(44, 7) + "\n  t*: 6: 870 [0: 0]\n" +
		"\nMAPPED_LIBRARIES:\n1000-2000 r-xp 00000000 fe:00 1 /bin/app\n" + sections
	dump := parse(t, text)
	want := `inuse_objects/count inuse_space/bytes
period space/bytes 1, time 1764400000000000001, duration 60000000000
3 30 : | /bin/app+0x10f | <Trainer.step /src/train.py:57 def 10> | <odd	name\n /src/a
b.py:4 def 0> | <[frames left out] :0 def 0> | <[python walk stopped] :0 def 0>
6 870 : | <[unknown python function] :9 def 0> | <[unnamed python function 44] :8 def 0> | <[unnamed python function 44] :7 def 0>
mapping 1000-2000 +0 "/bin/app" 00c0ffee
mapping 0-0 +0 "[python]" 
`
	if got := render(dump.Profile); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for _, l := range dump.Profile.Location {
		if stack.IsPython(l) && l.Address != 0 {
			t.Errorf("Python location has address %#x: the same line of two processes would stay two", l.Address)
		}
	}
	m := dump.Meta
	if !m.Present || m.Seq != 12 || m.Reason != "pressure" || !m.Time.Equal(time.Unix(0, 1764400000000000001)) ||
		m.Interval != time.Minute || m.SampleBytes != 524288 || m.ProfAccum || !m.Unbiased || m.Step == nil || *m.Step != -3 ||
		m.Python != "3.12.1" || m.PythonFrames != "off: unknown interpreter = odd" || m.Raw["new_key"] != "text" {
		t.Errorf("meta: %+v", m)
	}
	for key, want := range map[string]int64{"allocated": 1000, "rss": 2000, "cgroup_max": 3000, "samples": 77} {
		if got, ok := m.Figure(key); !ok || got != want {
			t.Errorf("%s: got %d, %v, want %d", key, got, ok, want)
		}
	}
	if _, ok := m.Figure("pss"); ok {
		t.Error("pss is there, though the dump leaves it out")
	}
	r := dump.Report
	if r.Truncated || r.NamelessTokens != 2 || r.GarbageLines != 0 {
		t.Errorf("report: %+v", r)
	}
	for _, s := range r.Sections {
		if s.State != jemalloc.SectionRead {
			t.Errorf("section %+v", s)
		}
	}
}

func TestSectionsThatAreOdd(t *testing.T) {
	stacks := header + "@ 0x1110 0x507900000040000a\n  t*: 9: 900 [0: 0]\n" + maps
	f := func(sections string, wantState ...string) {
		t.Helper()
		dump := parse(t, stacks+sections)
		var got []string
		for _, s := range dump.Report.Sections {
			got = append(got, s.Name[len("HEAPWIRE_"):]+" "+string(s.State))
		}
		if !slices.Equal(got, wantState) {
			t.Errorf("got %q, want %q", got, wantState)
		}
		if total := dump.Profile.Sample[0].Value[1]; total != 900 {
			t.Errorf("got %d bytes, want 900", total)
		}
	}
	meta, ids, frames := "\nHEAPWIRE_META: 1\nseq=1\n\n", "HEAPWIRE_BUILD_IDS: 1\n1000-2000 ab /bin/app\n\n", "HEAPWIRE_FRAMES: 1\n1\tf\tf.py\t1\n\n"
	f(meta+ids+frames, "META read", "BUILD_IDS read", "FRAMES read")
	f(frames+ids+meta, "FRAMES read", "BUILD_IDS read", "META read")
	f("", "META missing", "BUILD_IDS missing", "FRAMES missing")
	f(meta+frames, "META read", "FRAMES read", "BUILD_IDS missing")
	f(meta+"HEAPWIRE_BUILD_IDS: 1\n1000-2000 ab /bin/app\n"+frames, "META read", "BUILD_IDS cut", "FRAMES read")
	f(meta+ids+"HEAPWIRE_FRAMES: 1\n", "META read", "BUILD_IDS read", "FRAMES cut")
	f(meta+ids+"HEAPWIRE_FORTUNE: 1\n@ 0x1\n  t*: 1: 1 [0: 0]\n\n"+frames, "META read", "BUILD_IDS read", "FORTUNE skipped", "FRAMES read")
	f(meta+ids+"HEAPWIRE_FUTURE: 3\nanything: 1\n\n"+frames, "META read", "BUILD_IDS read", "FUTURE skipped", "FRAMES read")
	f("HEAPWIRE_META: 2\nseq=1\n\n"+ids+frames, "META skipped", "BUILD_IDS read", "FRAMES read")
	f(meta+ids+"HEAPWIRE_FRAMES: 1\nx\tf\tf.py\t1\n1\tf\tf.py\n1\tf\tf.py\t-1\n67108864\tf\tf.py\t1\n\n", "META read", "BUILD_IDS read", "FRAMES read")
	f("HEAPWIRE_META: 1\nno equals sign\nseq=x\ntime_unix_nano=-5\nprof_accum=yes\n=1\n\n"+ids+frames, "META read", "BUILD_IDS read", "FRAMES read")
	f(meta+"HEAPWIRE_BUILD_IDS: 1\nrubbish\n2000-1000 ab /x\n1000-2000 xyz /x\n1000-2000\n\n"+frames, "META read", "BUILD_IDS read", "FRAMES read")
}

func TestThreadNames(t *testing.T) {
	text := "heap_v2/524288\n  t*: 9: 900 [0: 0]\n  t0: 1: 1 [0: 0] main\n  t1: 1: 1 [0: 0] io pool 0\n  t2: 1: 1 [0: 0] io pool 0\n  t3: 1: 1 [0: 0]\n" +
		"@ 0x1110\n  t*: 10: 1000 [0: 0]\n  t0: 2: 200 [0: 0]\n  t1: 3: 300 [0: 0]\n  t2: 1: 100 [0: 0]\n  t3: 3: 300 [0: 0]\n  t77: 1: 100 [0: 0]\n" +
		"@ 0x1200\n  t*: 1: 50 [0: 0]\n" + maps
	dump, err := jemalloc.Parse(strings.NewReader(text), jemalloc.Options{KeepThreads: true})
	if err != nil {
		t.Fatal(err)
	}
	// 10 objects of 100 bytes at 512 KiB stand for 52433.8 objects.
	want := `10487 1048676 map[thread_name:[main]] : | /bin/app+0x10f
20973 2097352 map[thread_name:[io pool 0]] : | /bin/app+0x10f
20974 2097352 : | /bin/app+0x10f
10486 524313 : | /bin/app+0x1ff
`
	if got := samples(dump.Profile); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	whole := parse(t, text).Profile
	if sums(dump.Profile) != sums(whole) {
		t.Errorf("sums by thread %v, without threads %v", sums(dump.Profile), sums(whole))
	}
}

// sums adds up each column, right-aligned.
func sums(p *profile.Profile) (out [4]int64) {
	for _, s := range p.Sample {
		for i, v := range s.Value {
			out[4-len(s.Value)+i] += v
		}
	}
	return out
}

func TestRefused(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		dump, err := jemalloc.Parse(strings.NewReader(text), jemalloc.Options{Name: "in.heap"})
		if dump != nil || !errors.Is(err, jemalloc.ErrNotHeapV2) {
			t.Errorf("%.40q: got %v, %v, want ErrNotHeapV2", text, dump, err)
			return
		}
		if !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "in.heap: ") || len(err.Error()) > 500 {
			t.Errorf("%.40q: got %v, want it to say %q", text, err, want)
		}
	}
	f("", "empty")
	f("\n\n", "no heap_v2/ line")
	f("heap profile:   144:  8498176 [   144:  8498176] @ heapz_v2/524288\n", "gperftools")
	f("heap profile:   144:  8498176 [   144:  8498176] @ heap_v2/524288\n", "gperftools")
	f("heap profile: 13: 1595680 [47130736: 2584596557304] @ heap/1048576\n", "Go's text form")
	f("--- heapz 1 ---\nformat = java\n", "Java")
	f("\x1f\x8b\x08\x00junk", "gzip")
	f("\x28\xb5\x2f\xfdjunk", "zstd")
	f("\x7fELF\x02\x01", "ELF")
	f("\x80\x04\x95\x00", "pickle")
	f(strings.Repeat("\x00\x01\x02", 1<<20), "binary")
	f("Rss: 12 kB\n", "want heap_v2/")
	f("heap_v3/524288\n", "another version")
	// ClickHouse lets raw numbers pass as totals when the header is malformed.
	f("heap_v2/abc\n  t*: 1: 1 [0: 0]\n", "header")
	f("heap_v2/0\n", "header")
	f("heap_v2/\n", "header")
	f("heap_v2/12x\n", "header")
	f("heap_v2/-1\n", "header")
	f("heap_v2/18446744073709551616\n", "header")
	f("heap_v2/9223372036854775808\n", "header")
	f(strings.Repeat("<jemalloc>: noise\n", 200), "no heap_v2/ line among")

	for _, text := range []string{"h", "heap_v2/524288", "heap_v2/524288\n", header, header + "@ 0x1110", header + "@ 0x1110\n  t*: 1: 8"} {
		dump, err := jemalloc.Parse(strings.NewReader(text), jemalloc.Options{Name: "in.heap"})
		if dump != nil || !errors.Is(err, jemalloc.ErrTruncated) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d", len(text))) {
			t.Errorf("%q: got %v, %v, want ErrTruncated with the offset", text, dump, err)
		}
	}
}

func TestReaders(t *testing.T) {
	text := header + "@ 0x1110\n  t*: 3: 96 [0: 0]\n" + maps
	want := samples(parse(t, text).Profile)
	for name, r := range map[string]io.Reader{
		"a byte at a time":  iotest.OneByteReader(strings.NewReader(text)),
		"halves":            iotest.HalfReader(strings.NewReader(text)),
		"data with the EOF": iotest.DataErrReader(strings.NewReader(text)),
	} {
		dump, err := jemalloc.Parse(r, jemalloc.Options{})
		if err != nil || samples(dump.Profile) != want {
			t.Errorf("%s: got %v, %v", name, dump, err)
		}
	}
	// A failing disk is an error; a compressed stream that ends early is a cut.
	if dump, err := jemalloc.Parse(io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrClosedPipe)), jemalloc.Options{Name: "n"}); dump != nil || !errors.Is(err, io.ErrClosedPipe) || !strings.Contains(err.Error(), fmt.Sprintf("n: reading byte %d", len(text))) {
		t.Errorf("failing reader: got %v, %v", dump, err)
	}
	if dump, err := jemalloc.Parse(iotest.ErrReader(io.ErrClosedPipe), jemalloc.Options{}); dump != nil || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("reader that fails at once: got %v, %v", dump, err)
	}
	dump, err := jemalloc.Parse(io.MultiReader(strings.NewReader(text[:len(text)-5]), iotest.ErrReader(io.ErrUnexpectedEOF)), jemalloc.Options{})
	if err != nil || !dump.Report.Truncated {
		t.Errorf("cut stream: got %v, %v", dump, err)
	}
}

// endless gives the same byte n times.
type endless struct {
	c byte
	n int64
}

func (e *endless) Read(b []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), e.n))
	for i := range b[:n] {
		b[i] = e.c
	}
	e.n -= int64(n)
	return n, nil
}

func TestALineOfTwoGigabytes(t *testing.T) {
	size := int64(2 << 30)
	if testing.Short() {
		size = 16 << 20
	}
	before := header + "@ 0x1110\n  t*: 3: 96 [0: 0]\n"
	after := "\n@ 0x1200\n  t*: 1: 8 [0: 0]\n" + maps
	want := "3 96 : | /bin/app+0x10f\n1 8 : | /bin/app+0x1ff\n"
	for _, c := range []byte{'x', ' ', '0', '@'} {
		var m0, m1 runtime.MemStats
		runtime.ReadMemStats(&m0)
		dump, err := jemalloc.Parse(io.MultiReader(strings.NewReader(before), &endless{c, size}, strings.NewReader(after)), jemalloc.Options{Name: "x.heap"})
		runtime.ReadMemStats(&m1)
		if err != nil {
			t.Fatal(err)
		}
		if used := m1.TotalAlloc - m0.TotalAlloc; used > 8<<20 {
			t.Errorf("%q: allocated %d bytes", c, used)
		}
		if got := samples(dump.Profile); got != want {
			t.Errorf("%q: got\n%swant\n%s", c, got, want)
		}
		place := fmt.Sprintf("line 5 (byte %d)", len(before))
		if text := strings.Join(dump.Report.Warnings(), "\n"); dump.Report.LongLines != 1 || !strings.Contains(text, place) {
			t.Errorf("%q: warnings do not tell %s: %s", c, place, text)
		}
		size = min(size, 16<<20)
	}
	// A stack line that long keeps its innermost frames.
	long := header + "@" + strings.Repeat(" 0x1110", 200_000) + "\n  t*: 3: 96 [0: 0]\n" + maps
	dump := parse(t, long)
	if n := len(dump.Profile.Sample[0].Location); n != 4096 || dump.Report.DeepStacks != 1 || dump.Report.LongLines != 1 {
		t.Errorf("got %d frames, report %+v", n, dump.Report)
	}
}

func TestWarningsSayWhereAndWhat(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		got := strings.Join(parse(t, text).Report.Warnings(), "\n")
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("warnings lack %q:\n%s", w, got)
			}
		}
		if len(want) == 0 && got != "" {
			t.Errorf("unexpected warnings:\n%s", got)
		}
	}
	whole := "heap_v2/1\n  t*: 3: 96 [0: 0]\n@ 0x1110\n  t*: 3: 96 [0: 0]\n"
	f(whole + maps)
	f(whole, "x.heap: byte 57: the dump ends here, too early: stacks may be missing")
	f(whole+maps[:len(maps)-4], "the list of mappings is not whole; every stack is there")
	f(strings.Replace(whole, "3: 96", "6: 960", 1)+maps, "account for 10.0 %")
	f(whole+"  f: 1 2\n"+maps, "1 line of an unknown kind", `line 5 (byte 57): "  f: 1 2"`)
	f(whole+"@ 0x1\n  t*: 1: x [0: 0]\n@ 0x1\n  t*: 1:\n"+maps, "2 lines not readable", `line 6 (byte 63): "t*: 1: x [0: 0]"`)
	f(whole+"@ 0x1200\n"+maps, "1 stack without counts")
	f(whole+"@\n  t*: 1: 1 [0: 0]\n"+maps, "[no stack]")
	f(whole+"@ 0x7110\n  t*: 1: 1 [0: 0]\n"+maps, "1 address in no mapping")
	f(whole+maps+"\nHEAPWIRE_META: 1\nseq=1\n\n", "HEAPWIRE_FRAMES is missing: Python frames keep their line and lose their name")
	f(whole+maps+"\nHEAPWIRE_OBJECTS: 7\nseq=1\n\n", `HEAPWIRE_OBJECTS version "7" is not known`)
	f(whole+maps+sections[:strings.Index(sections, "rss")], "HEAPWIRE_META is not closed by an empty line")
}

func TestModes(t *testing.T) {
	f := func(text, mode string, share float64) {
		t.Helper()
		r := parse(t, text).Report
		if r.Mode != mode || math.Abs(r.ShareFound-share) > 0.005 {
			t.Errorf("got %s, %.4f, want %s, %.4f", r.Mode, r.ShareFound, mode, share)
		}
	}
	two := "@ 0x1110\n  t*: 1: 4096 [0: 0]\n@ 0x1200\n  t*: 1: 8192 [0: 0]\n" + maps
	f("heap_v2/1\n  t*: 2: 12288 [0: 0]\n"+two, jemalloc.ModeScaleFree, 1)
	f("heap_v2/524288\n  t*: 2: 12288 [0: 0]\n"+two, jemalloc.ModeRaw, 1)
	// Four raw stacks of which two are here: their sizes are all size classes.
	f("heap_v2/524288\n  t*: 4: 24576 [0: 0]\n"+two, jemalloc.ModeUndecided, 0.5)
	// An unbiased header: formula(c, s) = sum of the formula over the stacks, 1,054,733 bytes in 193 objects.
	f("heap_v2/524288\n  t*: 2: 10937 [0: 0]\n"+two, jemalloc.ModeUnbiased, 1)
	f("heap_v2/524288\n"+two, jemalloc.ModeUndecided, 1)
}

func TestStacksOfAllDepthsSurvive(t *testing.T) {
	for _, depth := range []int{1, 127, 128, 4095, 4096, 4097, 9000} {
		var b bytes.Buffer
		b.WriteString(header + "@")
		for i := range depth {
			fmt.Fprintf(&b, " 0x%x", 0x1110+i%1000)
		}
		b.WriteString("\n  t*: 3: 96 [0: 0]\n" + maps)
		dump := parse(t, b.String())
		if got, want := len(dump.Profile.Sample[0].Location), min(depth, 4096); got != want || dump.Report.DeepStacks != boolInt(depth > 4096) {
			t.Errorf("depth %d: got %d frames, %d deep stacks", depth, got, dump.Report.DeepStacks)
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

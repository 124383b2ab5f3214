// SPDX-License-Identifier: Apache-2.0

package symbol_test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/symbol"
)

const buildID = "0123456789abcdef0123"

// compile builds testdata/prog.cc.
func compile(t testing.TB, flags ...string) string {
	t.Helper()
	gxx, err := exec.LookPath("g++")
	if err != nil {
		t.Skip("g++ is not installed")
	}
	exe := filepath.Join(t.TempDir(), "prog")
	args := append([]string{"-O1", "-fno-optimize-sibling-calls", "-Wl,--build-id=0x" + buildID, "-o", exe, filepath.Join("testdata", "prog.cc")}, flags...)
	if out, err := exec.Command(gxx, args...).CombinedOutput(); err != nil {
		t.Fatalf("g++ %q: %v\n%s", flags, err, out)
	}
	return exe
}

// call is a call that the program made, as it told it.
type call struct {
	function string
	address  uint64
}

// run starts the program and returns its calls and a heap dump that has each call as a stack of its own.
func run(t testing.TB, exe string) ([]call, string) {
	t.Helper()
	out, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatalf("%s: %v", exe, err)
	}
	text, maps, _ := strings.Cut(string(out), "MAPS\n")
	var calls []call
	dump := "heap_v2/1\n"
	for line := range strings.Lines(text) {
		name, hex, _ := strings.Cut(strings.TrimSpace(line), "\t")
		address, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		calls = append(calls, call{name, address})
		dump += fmt.Sprintf("@ %#x\n  t*: 1: 8 [0: 0]\n", address)
	}
	if len(calls) < 6 {
		t.Fatalf("only %d calls", len(calls))
	}
	return calls, dump + "\nMAPPED_LIBRARIES:\n" + maps
}

// withID adds the shim's section that says which build of the program ran.
func withID(dump, exe, id string) string {
	lines := regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) .*`+regexp.QuoteMeta(exe)+`.*$`).FindAllStringSubmatch(dump, -1)
	return dump + fmt.Sprintf("\nHEAPWIRE_BUILD_IDS: 1\n%s-%s %s %s\n\n", lines[0][1], lines[len(lines)-1][2], id, exe)
}

func parse(t testing.TB, dump string) *profile.Profile {
	t.Helper()
	d, err := jemalloc.Parse(strings.NewReader(dump), jemalloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d.Profile
}

// names symbolizes the dump and returns the name of each stack's only frame.
func names(t testing.TB, r *symbol.Resolver, dump string) ([]string, symbol.Report) {
	t.Helper()
	p := parse(t, dump)
	report := r.Symbolize(p)
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range p.Sample {
		out = append(out, s.Location[0].Line[0].Function.Name)
	}
	return out, report
}

func TestNamesAreThoseTheProgramKnows(t *testing.T) {
	for name, flags := range map[string][]string{
		"PIE":                    {"-pie", "-fPIE"},
		"not PIE":                {"-no-pie"},
		"static":                 {"-static"},
		"code and data together": {"-pie", "-fPIE", "-Wl,-z,noseparate-code"},
		"moved, not PIE":         {"-no-pie", "-Wl,-Ttext-segment=0x12340000"},
		"moved PIE":              {"-pie", "-fPIE", "-Wl,-Ttext-segment=0x7000000"},
		"large pages":            {"-pie", "-fPIE", "-Wl,-z,max-page-size=0x200000"},
		"function sections":      {"-pie", "-fPIE", "-ffunction-sections", "-Wl,-z,keep-text-section-prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			exe := compile(t, flags...)
			calls, dump := run(t, exe)
			for _, dump := range []string{dump, withID(dump, exe, buildID), withID(dump, exe, strings.ToUpper(buildID))} {
				got, report := names(t, &symbol.Resolver{}, dump)
				for i, c := range calls {
					if got[i] != c.function {
						t.Errorf("%#x: got %q, want %q", c.address, got[i], c.function)
					}
				}
				if len(report.Warnings()) > 0 || report.Named != len(calls) || report.Unnamed != 0 {
					t.Errorf("report %+v", report)
				}
			}
		})
	}
}

// Every byte of the program's text has the name that nm gives it, and none where nm knows no function of that size.
func TestEveryByteAgreesWithNm(t *testing.T) {
	for _, flags := range [][]string{{"-pie", "-fPIE"}, {"-no-pie", "-Wl,-Ttext-segment=0x12340000"}} {
		exe := compile(t, flags...)
		nm, err := exec.Command("nm", "-S", exe).Output()
		if err != nil {
			t.Skipf("nm: %v", err)
		}
		file, err := elf.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		text := file.Section(".text")
		sized := map[uint64]map[string]bool{} // names by address
		for _, m := range regexp.MustCompile(`(?m)^([0-9a-f]+) ([0-9a-f]+) [tTwWiu] (\S+)$`).FindAllStringSubmatch(string(nm), -1) {
			start, _ := strconv.ParseUint(m[1], 16, 64)
			size, _ := strconv.ParseUint(m[2], 16, 64)
			for a := start; a < start+size; a++ {
				if sized[a] == nil {
					sized[a] = map[string]bool{}
				}
				sized[a][m[3]] = true
			}
		}
		bare := map[string]bool{} // without a size: they may reach to the next symbol
		for _, m := range regexp.MustCompile(`(?m)^[0-9a-f]+ [tTwW] (\S+)$`).FindAllStringSubmatch(string(nm), -1) {
			bare[m[1]] = true
		}
		var offsets []uint64
		for o := text.Offset; o < text.Offset+text.FileSize; o++ {
			offsets = append(offsets, o)
		}
		in, err := os.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		got, err := symbol.ParseELF(in, "", offsets)
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for _, o := range offsets {
			want := sized[o-text.Offset+text.Addr]
			switch name := got[o]; {
			case len(want) > 0 && !want[name]:
				t.Errorf("offset %#x: got %q, nm says %v", o, name, want)
			case len(want) == 0 && name != "" && !bare[name]:
				t.Errorf("offset %#x: got %q, which does not reach that far", o, name)
			case len(want) > 0:
				named++
			}
		}
		if named < 100 {
			t.Errorf("only %d bytes compared", named)
		}
	}
}

func TestSystemNameIsTheSymbol(t *testing.T) {
	_, dump := run(t, compile(t))
	p := parse(t, dump)
	new(symbol.Resolver).Symbolize(p)
	for _, f := range p.Function {
		if f.Name == "store::Cache<int>::put(int, char const*)" && f.SystemName == "_ZN5store5CacheIiE3putEiPKc" {
			return
		}
	}
	t.Errorf("no such function among %v", p.Function)
}

// A stripped program has only what it exports; the rest are addresses as its own tools would print them.
func TestStripped(t *testing.T) {
	strip, err := exec.LookPath("strip")
	if err != nil {
		t.Skip("strip is not installed")
	}
	exe := compile(t, "-rdynamic", "-Wl,-Ttext-segment=0x7000000")
	nm, err := exec.Command("nm", "-S", exe).Output()
	if err != nil {
		t.Skipf("nm: %v", err)
	}
	if out, err := exec.Command(strip, exe).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	calls, dump := run(t, exe)
	got, report := names(t, &symbol.Resolver{}, dump)
	for i, c := range calls {
		if c.function != "local_only(int)" {
			if got[i] != c.function {
				t.Errorf("got %q, want %q", got[i], c.function)
			}
			continue
		}
		m := regexp.MustCompile(`(?m)^([0-9a-f]+) ([0-9a-f]+) t _ZL10local_onlyi`).FindSubmatch(nm)
		start, _ := strconv.ParseUint(string(m[1]), 16, 64)
		size, _ := strconv.ParseUint(string(m[2]), 16, 64)
		hex, ok := strings.CutPrefix(got[i], "prog!0x")
		at, err := strconv.ParseUint(hex, 16, 64)
		if !ok || err != nil || at < start || at >= start+size {
			t.Errorf("got %q, want prog! and an address in [%#x, %#x)", got[i], start, start+size)
		}
	}
	if report.Unnamed != 1 {
		t.Errorf("report %+v", report)
	}
}

func TestAnotherFileAtThePath(t *testing.T) {
	exe := compile(t)
	calls, dump := run(t, exe)
	f := func(dump, reason string) {
		t.Helper()
		got, report := names(t, &symbol.Resolver{}, dump)
		for i := range calls {
			if !strings.HasPrefix(got[i], "prog!0x") {
				t.Errorf("got %q, want an address only", got[i])
			}
		}
		w := report.Warnings()
		if len(w) != 1 || !strings.Contains(w[0], reason) || !strings.HasPrefix(w[0], exe) || !strings.Contains(w[0], fmt.Sprint(len(calls), " frames")) {
			t.Errorf("warnings %q, want one about %q", w, reason)
		}
	}
	f(withID(dump, exe, "ffff"), "another file is at the path: its build id is "+buildID)
	gone := strings.ReplaceAll(dump, exe, exe+" (deleted)")
	f(gone, "deleted or replaced")
	f(withID(gone, exe, "ffff"), "another file")
	// The same build is there again: its id says so.
	if got, report := names(t, &symbol.Resolver{}, withID(gone, exe, buildID)); got[0] != calls[0].function || len(report.Warnings()) != 0 {
		t.Errorf("same build: got %q, %+v", got, report)
	}
	if err := os.WriteFile(exe, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f(dump, "reading the ELF file")
	os.Remove(exe)
	f(dump, "not here")
	if err := syscall.Mkfifo(exe, 0o600); err != nil {
		t.Fatal(err)
	}
	f(dump, "not a regular file") // and does not hang
	os.Remove(exe)
	os.Mkdir(exe, 0o700)
	f(dump, "not a regular file")
}

func TestTwoBuildsWithTheSamePath(t *testing.T) {
	exe := compile(t)
	_, dump := run(t, exe)
	r := &symbol.Resolver{}
	if got, _ := names(t, r, withID(dump, exe, buildID)); got[0] != "plain_c" {
		t.Errorf("got %q", got[0])
	}
	if got, _ := names(t, r, withID(dump, exe, "ffff")); !strings.HasPrefix(got[0], "prog!") {
		t.Errorf("another build got the name %q out of the cache", got[0])
	}
	// What was asked once is remembered, the file is not needed any more.
	os.Remove(exe)
	if got, report := names(t, r, withID(dump, exe, buildID)); got[0] != "plain_c" || len(report.Warnings()) != 0 {
		t.Errorf("got %q, %+v", got, report)
	}
}

func TestRoot(t *testing.T) {
	exe := compile(t)
	calls, dump := run(t, exe)
	root := t.TempDir()
	inside := strings.ReplaceAll(dump, exe, "/opt/app/prog")
	text, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "opt/app"), 0o755); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(root, "opt/app/prog")
	if err := os.WriteFile(at, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, report := names(t, &symbol.Resolver{Root: root}, inside); got[0] != calls[0].function || len(report.Warnings()) != 0 {
		t.Errorf("got %q, %+v", got, report)
	}
	// A link must not lead to the files of another root.
	os.Remove(at)
	if err := os.Symlink(exe, at); err != nil {
		t.Fatal(err)
	}
	if got, report := names(t, &symbol.Resolver{Root: root}, inside); !strings.HasPrefix(got[0], "prog!") || len(report.Warnings()) != 1 {
		t.Errorf("got %q, %+v", got, report)
	}
}

func TestMemoryWithoutFiles(t *testing.T) {
	f := func(file, want string) {
		t.Helper()
		dump := "heap_v2/1\n@ 0x1235\n  t*: 1: 8 [0: 0]\n\nMAPPED_LIBRARIES:\n1000-2000 r-xp 00000000 00:00 0 " + file + "\n"
		got, report := names(t, &symbol.Resolver{}, dump)
		if got[0] != want || report.Unnamed != 1 {
			t.Errorf("%s: got %q, want %q; %+v", file, got[0], want, report)
		}
	}
	f("", "[anonymous]!0x1234") // addresses of code made at run time have no other origin
	f("[vdso]", "[vdso]!0x234")
	f("//anon", "anon!0x234")
	f("[anon:jit]", "[anon:jit]!0x234")
	f("/dev/zero", "zero!0x234")
	f("/no/such/lib.so", "lib.so!0x234")
	dump := "heap_v2/1\n@ 0x1235 0x5079000000400007\n  t*: 1: 8 [0: 0]\n\nMAPPED_LIBRARIES:\n\nHEAPWIRE_FRAMES: 1\n1\tf\tf.py\t1\n\n"
	if got, _ := names(t, &symbol.Resolver{}, dump); got[0] != "0x1234" {
		t.Errorf("no mapping: got %q", got[0])
	}
}

// Damaged files cost an error at most, and no time to speak of.
func TestDamagedFiles(t *testing.T) {
	exe := compile(t, "-no-pie")
	whole, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	offsets := []uint64{0, 0x1100, 0x1180, 0x1200, 0x1280, 1 << 40, ^uint64(0)}
	check := func(what string, b []byte) {
		t.Helper()
		start := time.Now()
		names, _ := symbol.ParseELF(bytes.NewReader(b), "", offsets)
		for _, n := range names {
			if len(n) > 64<<10 {
				t.Errorf("%s: name of %d bytes", what, len(n))
			}
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s: took %s", what, d)
		}
	}
	for n := 0; n < len(whole); n += 1 + n/200 {
		check(fmt.Sprintf("cut at %d", n), whole[:n])
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		b := bytes.Clone(whole)
		for range 1 + r.IntN(8) {
			at := r.IntN(len(b))
			if r.IntN(2) == 0 {
				at = r.IntN(1024) // headers
			} else if r.IntN(2) == 0 {
				at = len(b) - 1 - r.IntN(2200) // section headers
			}
			b[at] = byte(r.Uint32())
		}
		check(fmt.Sprintf("mutation %d", i), b)
	}
}

func FuzzELF(f *testing.F) {
	exe := compile(f, "-no-pie", "-s", "-rdynamic")
	whole, err := os.ReadFile(exe)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:4096])
	f.Fuzz(func(t *testing.T, b []byte) {
		names, err := symbol.ParseELF(bytes.NewReader(b), "", []uint64{0x1100, 0x1200, 1 << 50})
		if err == nil && len(names) > 3 {
			t.Fatalf("%d names for 3 addresses", len(names))
		}
	})
}

// A reader that fails is an error of that file.
func TestFailingDisk(t *testing.T) {
	if _, err := symbol.ParseELF(failing{}, "", []uint64{1}); err == nil {
		t.Error("no error")
	}
}

type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, io.ErrClosedPipe }

// BenchmarkSymbolize looks 1000 addresses up in the largest library that a Python here has.
func BenchmarkSymbolize(b *testing.B) {
	files, _ := filepath.Glob(filepath.Join(os.Getenv("PYENV_ROOT"), "versions", "*", "lib", "libpython3.*.so.1.0"))
	if len(files) == 0 {
		b.Skip("no libpython: set PYENV_ROOT")
	}
	file := files[len(files)-1]
	e, err := elf.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	text := e.Section(".text")
	var offsets []uint64
	for i := range uint64(1000) {
		offsets = append(offsets, text.Offset+i*(text.FileSize/1000))
	}
	in, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	b.ReportAllocs()
	for b.Loop() {
		names, err := symbol.ParseELF(in, "", offsets)
		if err != nil || len(names) == 0 {
			b.Fatal(names, err)
		}
	}
}

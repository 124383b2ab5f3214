// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/symbol"
)

// build compiles testdata/known.c.
func build(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed")
	}
	exe := filepath.Join(t.TempDir(), "known")
	out, err := exec.Command(gcc, "-O1", "-g", "-fno-inline", "-fno-optimize-sibling-calls", "-o", exe, filepath.Join("testdata", "known.c"), "-pthread", "-ljemalloc").CombinedOutput()
	if err != nil {
		t.Skipf("known.c does not link against jemalloc (install its development package): %v\n%s", err, out)
	}
	return exe
}

type amount struct{ objects, bytes float64 }

// dumpKnown runs the program under jemalloc's options and returns the dump's path and what each site holds.
func dumpKnown(t *testing.T, exe, conf string) (string, map[string]amount) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "known.heap")
	cmd := exec.Command(exe, file)
	cmd.Env = append(os.Environ(), "MALLOC_CONF="+conf)
	var errout bytes.Buffer
	cmd.Stderr = &errout
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("this jemalloc cannot profile: %s", errout.String())
	}
	if err != nil {
		t.Fatalf("known: %v\n%s", err, errout.String())
	}
	sites := map[string]amount{}
	for line := range strings.Lines(string(out)) {
		var name string
		var a amount
		if _, err := fmt.Sscan(line, &name, &a.objects, &a.bytes); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sites[name] = a
	}
	return file, sites
}

func heap(t *testing.T, file string) *convert.Heap {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	h, err := convert.HeapDump(in, convert.Options{Name: file, Symbols: &symbol.Resolver{}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// bySite charges each sample to the innermost function of the program.
func bySite(p *profile.Profile, objects, bytes int) map[string]amount {
	out := map[string]amount{}
	for _, s := range p.Sample {
		for _, l := range s.Location {
			name := l.Line[0].Function.Name
			if strings.HasPrefix(name, "site_") {
				a := out[name]
				a.objects += float64(s.Value[objects])
				a.bytes += float64(s.Value[bytes])
				out[name] = a
				break
			}
		}
	}
	return out
}

// Of every site of a program that counts what it allocates, the estimate is within three standard errors. Chance alone
// breaks that for one in 370, and jemalloc draws anew in every run: a run that fails is repeated once.
func TestKnownProgramWithinThreeSigma(t *testing.T) {
	exe := build(t)
	for _, lg := range []int{17, 19} {
		t.Run(fmt.Sprint("lg", lg), func(t *testing.T) {
			var off []string
			for range 2 {
				if off = offTruth(t, exe, lg); len(off) == 0 {
					return
				}
				t.Logf("off: %q", off)
			}
			t.Errorf("twice beyond three sigma: %q", off)
		})
	}
	// With every allocation sampled nothing is estimated.
	file, want := dumpKnown(t, exe, "prof:true,lg_prof_sample:0,prof_accum:true")
	p := heap(t, file).Profile
	got := bySite(p, 2, 3)
	for site, w := range want {
		if got[site] != w {
			t.Errorf("lg 0: %s: got %+v, want %+v", site, got[site], w)
		}
	}
	if a := bySite(p, 0, 1)["site_freed"]; a != (amount{5000, 5000 * 16384}) {
		t.Errorf("lg 0: site_freed allocated %+v, want 5000 objects of 16 KiB", a)
	}
}

// offTruth runs the program once and returns the sites that are further from the truth than chance explains.
func offTruth(t *testing.T, exe string, lg int) (off []string) {
	t.Helper()
	file, want := dumpKnown(t, exe, fmt.Sprintf("prof:true,lg_prof_sample:%d", lg))
	h := heap(t, file)
	if w := h.Report.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %q", w)
	}
	got := bySite(h.Profile, 0, 1)
	r := math.Exp2(float64(lg))
	// An object of size z is sampled with probability p and then stands for 1/p: n of them have variance n*(1/p-1).
	variance := func(n, z float64) float64 { return n * (-1/math.Expm1(-z/r) - 1) }
	for site, w := range want {
		g := got[site]
		var inBytes, inObjects float64
		switch {
		case site == "site_mixed":
			inObjects = math.Sqrt(variance(20, 1<<20) + variance(19980, 64))
			inBytes = math.Sqrt(variance(20, 1<<20)*(1<<40) + variance(19980, 64)*64*64)
		case w.objects > 0:
			inObjects = math.Sqrt(variance(w.objects, w.bytes/w.objects))
			inBytes = inObjects * w.bytes / w.objects
		}
		t.Logf("%-10s %9.0f bytes (truth %9.0f, sigma %8.0f), %7.0f objects (truth %6.0f, sigma %6.0f)",
			site, g.bytes, w.bytes, inBytes, g.objects, w.objects, inObjects)
		if math.Abs(g.bytes-w.bytes) > 3*inBytes+1 || math.Abs(g.objects-w.objects) > 3*inObjects+1 {
			off = append(off, fmt.Sprintf("%s: got %+v, want %+v, sigma %.0f and %.0f", site, g, w, inObjects, inBytes))
		}
	}
	return off
}

// jemalloc's own tool reads the same totals out of the same dump.
func TestTotalsAreThoseOfJeprof(t *testing.T) {
	jeprof, err := exec.LookPath("jeprof")
	if err != nil {
		t.Skip("jeprof is not installed")
	}
	exe := build(t)
	for _, conf := range []string{"prof:true,lg_prof_sample:17", "prof:true,lg_prof_sample:17,prof_unbias:false"} {
		file, _ := dumpKnown(t, exe, conf)
		got := sums(heap(t, file).Profile)
		for _, c := range []struct {
			flag string
			want int64
		}{{"--inuse_space", got[3]}, {"--inuse_objects", got[2]}} {
			cmd := exec.Command(jeprof, "--text", c.flag, "--show_bytes", exe, file)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
			m := regexp.MustCompile(`(?m)^Total: (\d+) `).FindSubmatch(out)
			if m == nil {
				t.Fatalf("no total in\n%s", out)
			}
			total, _ := strconv.ParseInt(string(m[1]), 10, 64)
			t.Logf("%s %s: ours %d, jeprof's %d", conf, c.flag, c.want, total)
			if math.Abs(float64(total-c.want)) > 0.01*float64(total) {
				t.Errorf("%s %s: got %d, jeprof says %d", conf, c.flag, c.want, total)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

// Nothing sets off a dump before the end.
var exitDumpOnly = []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_JUMP=off", "HEAPWIRE_PRESSURE=off", "HEAPWIRE_PSI=0"}

// What small objects of one kind take, by pymalloc's own statistics.
func truthOfKinds(t *testing.T, p pythons.Python, mebibytes string) map[string]float64 {
	t.Helper()
	cmd := exec.Command(p.Path, "programs/kinds.py", "truth", mebibytes)
	cmd.Env = pythons.CleanEnv()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kinds.py truth: %v\n%s", err, out)
	}
	var truth map[string]float64
	if err := json.Unmarshal(out, &truth); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return truth
}

// readDump reads a dump that must be whole.
func readDump(t *testing.T, path string) *jemalloc.Dump {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dump, err := jemalloc.Parse(f, jemalloc.Options{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	if dump.Report.Truncated || dump.Report.GarbageLines > 0 || dump.Report.UnknownLines > 0 {
		t.Fatal(dump.Report.Warnings())
	}
	return dump
}

// held sums what a profile's stacks hold by the functions in them, each function once a stack.
func held(p *profile.Profile) map[string]float64 {
	sums := map[string]float64{}
	for _, s := range p.Sample {
		seen := map[string]bool{}
		for _, l := range s.Location {
			for _, line := range l.Line {
				if name := line.Function.Name; !seen[name] {
					seen[name] = true
					sums[name] += float64(s.Value[len(p.SampleType)-1])
				}
			}
		}
	}
	return sums
}

// Every kind is attributed to its function, within 15 %: more than six standard deviations, which are sqrt(interval/bytes) = 2.2 %
// here. The same work without keeping it shows no growth.
func TestSmallObjectsAreAttributed(t *testing.T) {
	const mebibytes = "4"
	quiet := append([]string{"HEAPWIRE_SAMPLE_BYTES=2KiB"}, exitDumpOnly...)
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		truth := truthOfKinds(t, p, mebibytes)
		r := under(t, library, quiet, p.Path, "programs/kinds.py", "leak", mebibytes)
		if r.code != 0 || len(r.dumps) != 1 {
			t.Fatalf("exit status %d, dumps %v\n%s", r.code, r.dumps, r.stderr)
		}
		dump := readDump(t, filepath.Join(r.spool, r.dumps[0]))
		if got := dump.Meta.Raw["python_objects"]; got != "on" {
			t.Fatalf("python_objects=%s", got)
		}
		got := held(dump.Profile)
		for kind, want := range truth {
			if math.Abs(got[kind]-want) > 0.15*want || want < 2<<20 {
				t.Errorf("%s holds %.2f MiB, pymalloc says %.2f", kind, got[kind]/(1<<20), want/(1<<20))
			}
		}
		r = under(t, library, quiet, p.Path, "programs/kinds.py", "healthy", mebibytes)
		if r.code != 0 || len(r.dumps) != 1 {
			t.Fatalf("exit status %d, dumps %v\n%s", r.code, r.dumps, r.stderr)
		}
		got = held(readDump(t, filepath.Join(r.spool, r.dumps[0])).Profile)
		for kind, leaked := range truth {
			if got[kind] > leaked/4 {
				t.Errorf("%s keeps a thousand objects, and is said to hold %.2f MiB", kind, got[kind]/(1<<20))
			}
		}
	})
}

// The same at the default interval, 64 MiB of each kind, twenty times (HEAPWIRE_MATRIX; HEAPWIRE_ROUNDS for another number): the
// mean is right, and single dumps scatter as they must, by sqrt(interval/bytes) = 8.8 %.
func TestSmallObjectsAtTheDefaultInterval(t *testing.T) {
	if !full {
		t.Skip("HEAPWIRE_MATRIX is not set: make test-matrix")
	}
	const mebibytes = 64
	rounds, err := strconv.Atoi(os.Getenv("HEAPWIRE_ROUNDS"))
	if err != nil {
		rounds = 20
	}
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		truth := truthOfKinds(t, p, strconv.Itoa(mebibytes))
		spool := filepath.Join(t.TempDir(), "spool")
		cmd := exec.Command(p.Path, "programs/kinds.py", "rounds", strconv.Itoa(mebibytes), strconv.Itoa(rounds))
		cmd.Env = pythons.CleanEnv("LD_PRELOAD="+library, "HEAPWIRE_SPOOL="+spool, "HEAPWIRE_EXIT_DUMP=off")
		cmd.Env = append(cmd.Env, exitDumpOnly...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ratios := map[string][]float64{}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			_, kind, _ := strings.Cut(lines.Text(), " ")
			names, _ := filepath.Glob(filepath.Join(spool, "*", "*.api.heap"))
			slices.Sort(names)
			if len(names) == 0 {
				t.Fatal("no dump")
			}
			// The program goes on meanwhile, but not with this dump.
			name := names[0]
			ratios[kind] = append(ratios[kind], held(readDump(t, name).Profile)[kind]/truth[kind])
			os.Remove(name)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if len(ratios) != len(truth) {
			t.Fatalf("%d kinds, want %d", len(ratios), len(truth))
		}
		for _, kind := range slices.Sorted(maps.Keys(ratios)) {
			r := ratios[kind]
			var mean, deviation, beyond float64
			for _, x := range r {
				mean += x / float64(len(r))
			}
			for _, x := range r {
				deviation += (x - mean) * (x - mean) / float64(len(r))
				if math.Abs(x-1) > 0.15 {
					beyond++
				}
			}
			sigma := math.Sqrt(float64(512<<10) / truth[kind])
			t.Logf("%-14s %3d x %5.1f MiB: mean %.3f of the truth, deviation %.3f (want %.3f), %.0f beyond 15 %%", kind, len(r), truth[kind]/(1<<20),
				mean, math.Sqrt(deviation), sigma, beyond)
			if off := math.Abs(mean - 1); off > 5*sigma/math.Sqrt(float64(len(r))) {
				t.Errorf("%s: the mean is %.1f %% off", kind, 100*off)
			}
			if len(r) >= 10 && math.Sqrt(deviation) > 2.2*sigma {
				t.Errorf("%s: scatters by %.1f %%, want %.1f", kind, 100*math.Sqrt(deviation), 100*sigma)
			}
		}
	})
}

// sys.getallocatedblocks() says what it says without the shim, of a thousand or so that the interpreter itself makes: sampled objects,
// a fifth of all here, are counted while they live and counted off when they are freed, wherever their frees go.
func TestSampledObjectsAreCounted(t *testing.T) {
	const program = `
import atexit, gc, sys, time
end = time.monotonic() + 60
while "armed" in sys.argv and not atexit._ncallbacks() and time.monotonic() < end:
    time.sleep(0.001)
before = sys.getallocatedblocks()
keep = [(i,) for i in range(100000)]
held = sys.getallocatedblocks()
text = ""
for i in range(20000):
    text += "ab"
    keep[i] = str(i) * 20
del keep, text
gc.collect()
print(held - before, sys.getallocatedblocks() - before)
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		var plain, with [2]int
		cmd := exec.Command(p.Path, "-c", program)
		cmd.Env = pythons.CleanEnv()
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		r := under(t, library, append([]string{"HEAPWIRE_SAMPLE_BYTES=256"}, exitDumpOnly...), p.Path, "-c", program, "armed")
		for to, text := range map[*[2]int]string{&plain: string(out), &with: r.stdout} {
			if _, err := fmt.Sscan(text, &to[0], &to[1]); err != nil {
				t.Fatalf("%v: %q\n%s", err, text, r.stderr)
			}
		}
		if plain[0] < 100000 {
			t.Fatalf("without the shim: %v", plain)
		}
		for i := range plain {
			if off := with[i] - plain[i]; off < -1000 || off > 1000 {
				t.Errorf("%v blocks more while all live, and after; without the shim %v", with, plain)
				break
			}
		}
	})
}

// Who serves small objects is the user's to say, and a dump says it.
func TestWhoServesObjects(t *testing.T) {
	// The callback for the exit is registered when it has been looked whether all is well.
	const program = `
import atexit, os, time
end = time.monotonic() + 60
while not atexit._ncallbacks() and time.monotonic() < end:
    time.sleep(0.001)
keep = [bytes(100) for _ in range(50000)]
print(os.environ.get("PYTHONMALLOC"))
`
	const bytesKept = 50000 * 144
	const others = "off: objects are not served by pymalloc alone"
	for _, c := range []struct{ env, want string }{
		{"HEAPWIRE_PYTHON_OBJECTS=sampled", "on"},
		{"HEAPWIRE_PYTHON_OBJECTS=off", "off: HEAPWIRE_PYTHON_OBJECTS=off"},
		{"HEAPWIRE_PYTHON_OBJECTS=malloc", "malloc"},
		{"HEAPWIRE_PYTHON_FRAMES=off", "off: no Python frames"},
		{"PYTHONTRACEMALLOC=1", "on"},
		{"PYTHONMALLOC=pymalloc", "on"},
		{"PYTHONMALLOC=malloc", "off: objects are served by malloc"},
		{"PYTHONMALLOC=debug", others},
		{"PYTHONDEVMODE=1", others},
	} {
		t.Run(c.env, func(t *testing.T) {
			eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
				program := program
				if strings.HasPrefix(c.env, "HEAPWIRE_PYTHON_FRAMES") { // nothing is registered then
					program = program[strings.Index(program, "keep"):]
					program = "import os\n" + program
				}
				r := under(t, library, append([]string{"HEAPWIRE_SAMPLE_BYTES=4KiB", c.env}, exitDumpOnly...), p.Path, "-c", program)
				if r.code != 0 || len(r.dumps) != 1 {
					t.Fatalf("exit status %d, dumps %v\n%s", r.code, r.dumps, r.stderr)
				}
				set, value, _ := strings.Cut(c.env, "=")
				if !strings.HasPrefix(set, "PYTHONMALLOC") {
					value = "None"
				}
				if strings.TrimSpace(r.stdout) != value {
					t.Errorf("the program's PYTHONMALLOC is %q", r.stdout)
				}
				dump := readDump(t, filepath.Join(r.spool, r.dumps[0]))
				if got := dump.Meta.Raw["python_objects"]; !strings.HasPrefix(got, c.want) {
					t.Errorf("python_objects=%s, want %s", got, c.want)
				}
				if seen := dump.Report.SmallBytes; c.want == "on" && (seen < bytesKept/2 || seen > 3*bytesKept) || c.want != "on" && seen != 0 {
					t.Errorf("%.0f bytes are sampled of %d", seen, bytesKept)
				}
				// Seen by malloc, or sampled at pymalloc, or neither; never both. tracemalloc's own books are on this line too.
				sees := c.want == "on" || c.want == "malloc" || strings.HasSuffix(c.env, "=malloc")
				if all := held(dump.Profile)["<module>"]; sees != (all > bytesKept*3/4) || all > bytesKept*2 && set != "PYTHONTRACEMALLOC" {
					t.Errorf("%.0f bytes are seen of %d", all, bytesKept)
				}
			})
		})
	}
}

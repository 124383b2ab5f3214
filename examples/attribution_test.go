// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

// A lesson is one program with the arguments of a test run. Its blocks are sized so that a run takes about a second.
type lesson struct {
	name    string
	program string
	args    []string
	flags   []string // of heapwire run
	check   func(t *testing.T, j *job, truths []truth, profiles map[int]*profile.Profile)
	needs   func(python) (string, bool) // why an interpreter cannot run it
}

// headers are what building an extension takes, and the compiler that the interpreter names for it.
func headers(p python) (string, bool) {
	if !p.Headers {
		return "no Python.h for this interpreter", false
	}
	cmd := exec.Command(p.Path, "-c", "import os, shutil, sysconfig; print(shutil.which((os.environ.get('CC') or sysconfig.get_config_var('CC') or 'cc').split()[0]) or '')")
	cmd.Env = pythons.CleanEnv()
	out, err := cmd.Output()
	return "no compiler for this interpreter's extensions", err == nil && len(bytes.TrimSpace(out)) > 0
}

var lessons = []lesson{
	{name: "leak_basic", program: "leak_basic/leak_basic.py", args: []string{"--rounds", "5", "--blocks", "128", "--pause", "0"}},
	{name: "leak_native", program: "leak_native/leak_native.py", args: []string{"--blocks", "256"}, check: checkNative, needs: headers},
	{name: "workers_fork", program: "workers/workers.py", args: []string{"--start-method", "fork"}, check: checkWorkers},
	{name: "workers_spawn", program: "workers/workers.py", args: []string{"--start-method", "spawn"}, check: checkWorkers},
	{name: "workers_forkserver", program: "workers/workers.py", args: []string{"--start-method", "forkserver"}, check: checkWorkers},
	{name: "generators", program: "cases/generators.py", check: checkGenerators},
	{name: "threads", program: "cases/threads.py"},
	{name: "recursion", program: "cases/recursion.py", check: checkRecursion},
	{name: "forks", program: "cases/forks.py"},
	{name: "subprocesses", program: "cases/subprocesses.py", check: checkSubprocesses},
}

// Every lesson under every interpreter: the job keeps what it holds until a dump begun after it had told its truth has
// become a profile, so the two describe the same moment.
func TestLeaksAreAttributedToFunctionFileAndLine(t *testing.T) {
	for _, py := range findPythons(t, python.Supported) {
		t.Run(py.String(), func(t *testing.T) {
			for _, l := range lessons {
				t.Run(l.name, func(t *testing.T) {
					t.Parallel()
					if l.needs != nil {
						if why, ok := l.needs(py); !ok {
							t.Skip(why)
						}
					}
					l.run(t, py)
				})
			}
		})
	}
}

func (l lesson) run(t *testing.T, py python) {
	program := filepath.Join(here, l.program)
	told := filepath.Join(t.TempDir(), "truth")
	args := append([]string{py.Path, program, "--hold", "--truth", told}, l.args...)
	if l.name == "leak_native" {
		args = append(args, "--module", buildExtension(t, py))
	}
	j := startRun(t, nil, append([]string{"--interval", "500ms"}, l.flags...), args...)
	j.truth = told
	truths := j.truths()
	moment := truths[len(truths)-1].Time
	profiles := map[int]*profile.Profile{}
	for _, one := range truths {
		profiles[one.PID] = j.profileAfter(one.PID, moment)
	}
	j.succeed()
	for line := range strings.Lines(j.stderr.String()) {
		if !strings.HasPrefix(line, "heapwire") {
			t.Errorf("under the shim the job says what it does not say without: %s", line)
		}
	}
	for _, one := range truths {
		checkSites(t, py, profiles[one.PID], program, one)
	}
	if l.check != nil {
		l.check(t, j, truths, profiles)
	}
}

func buildExtension(t *testing.T, py python) string {
	t.Helper()
	folder := t.TempDir()
	cmd := exec.Command(py.Path, filepath.Join(here, "leak_native", "build.py"), folder)
	cmd.Env = pythons.CleanEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the extension: %v\n%s", err, out)
	}
	return folder
}

// The C function is in the stack, under the Python line that called it, or under none.
func checkNative(t *testing.T, _ *job, truths []truth, profiles map[int]*profile.Profile) {
	told := truths[0]
	p := profiles[told.PID]
	places := markedPlaces(t, filepath.Join(here, "leak_native/leak_native.py"))
	for site, function := range map[string]string{
		"released": "leak_without_lock", "held": "leak_with_lock", "threaded": "leak_on_own_thread",
	} {
		got, want := live(t, p, func(s *profile.Sample) bool { return calls(s, function) }), told.Sites[site].bytes()
		if !near(got, want) {
			t.Errorf("%s: %.2f MiB, truth %.2f MiB", function, mib(got), mib(want))
		}
		for _, s := range p.Sample {
			if !calls(s, function) {
				continue
			}
			switch f, ok := innermostPython(s); {
			case site == "threaded" && ok:
				t.Errorf("%s runs on a thread without Python state, but is said to be called by %s:%d", function, f.function, f.line)
			case site != "threaded" && (!ok || f.line != places[site].line):
				t.Errorf("%s: called from line %d, want %d", function, f.line, places[site].line)
			}
		}
	}
}

// The parent's model is the parent's alone and one worker leaks: the tree's folders add up to what was allocated once.
func checkWorkers(t *testing.T, j *job, truths []truth, profiles map[int]*profile.Profile) {
	if len(truths) != 5 {
		t.Errorf("%d processes told a truth, want a parent and four workers", len(truths))
	}
	leaking := 0
	for _, one := range truths {
		if one.Sites["collect"].Blocks > 0 {
			leaking++
		}
	}
	if leaking != 1 {
		t.Errorf("%d workers leaked, want 1", leaking)
	}
	checkTree(t, j, truths, profiles)
}

func checkSubprocesses(t *testing.T, j *job, truths []truth, profiles map[int]*profile.Profile) {
	if len(truths) != 2 {
		t.Errorf("%d processes told a truth, want parent and child", len(truths))
	}
	folders, err := filepath.Glob(filepath.Join(j.out, "*-*-*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(folders) != 2 {
		t.Errorf("folders %v: want those of parent and child, none of a shell", folders)
	}
	checkTree(t, j, truths, profiles)
}

// checkTree sums the profiles of every process of the tree, helpers of multiprocessing included.
func checkTree(t *testing.T, j *job, truths []truth, profiles map[int]*profile.Profile) {
	t.Helper()
	var want, got int64
	for _, one := range truths {
		for _, site := range one.Sites {
			want += site.bytes()
		}
	}
	folders, err := filepath.Glob(filepath.Join(j.out, "*-*-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		pid, err := pidOf(filepath.Base(folder))
		if err != nil {
			t.Error(err)
			continue
		}
		p := profiles[pid]
		if p == nil { // a helper: it told no truth, any of its profiles will do
			paths, err := j.profilePaths(pid)
			if err != nil || len(paths) == 0 {
				continue
			}
			if p, err = readProfile(paths[0]); err != nil {
				t.Fatal(err)
			}
		}
		got += live(t, p, func(s *profile.Sample) bool {
			f, ok := innermostPython(s)
			return ok && strings.HasPrefix(f.file, here)
		})
	}
	if !near(got, want) {
		t.Errorf("the tree's %d processes hold %.2f MiB of the program's own, truth %.2f MiB", len(folders), mib(got), mib(want))
	}
}

// Whoever resumed a generator or coroutine is among its callers.
func checkGenerators(t *testing.T, _ *job, truths []truth, profiles map[int]*profile.Profile) {
	p := profiles[truths[0].PID]
	program := filepath.Join(here, "cases/generators.py")
	places := markedPlaces(t, program)
	for site, callers := range map[string][]string{
		"produce": {"consume", "main"},
		"inner":   {"delegate", "consume", "main"},
		"fetch":   {"consume_async", "consume", "main"},
		"stream":  {"consume_async", "consume", "main"},
	} {
		found := false
		for _, s := range p.Sample {
			if f, ok := innermostPython(s); ok && f.file == program && f.line == places[site].line {
				found = true
				if missing := notCalled(s, callers); len(missing) > 0 {
					t.Errorf("%s: callers %v are missing in %v", site, missing, frames(s))
				}
			}
		}
		if !found {
			t.Errorf("%s: not found", site)
		}
	}
}

func notCalled(s *profile.Sample, functions []string) []string {
	var missing []string
	for _, f := range functions {
		if !calls(s, f) {
			missing = append(missing, f)
		}
	}
	return missing
}

// The root of a stack deeper than any limit is still there, and all of the leak is one stack, whatever was left out.
func checkRecursion(t *testing.T, _ *job, truths []truth, profiles map[int]*profile.Profile) {
	p := profiles[truths[0].PID]
	at := markedPlaces(t, filepath.Join(here, "cases/recursion.py"))["descend"]
	stacks := 0
	for _, s := range p.Sample {
		if f, ok := innermostPython(s); !ok || f.line != at.line || !strings.HasSuffix(f.file, "recursion.py") {
			continue
		}
		stacks++
		if missing := notCalled(s, []string{"main", "<module>"}); len(missing) > 0 {
			t.Errorf("the root of the stack is missing: no %v among %d frames", missing, len(s.Location))
		}
		if n := len(s.Location); n > 128 {
			t.Errorf("%d frames, more than jemalloc's 128", n)
		}
	}
	// bytearray allocates in one place; a few blocks may come by another native path.
	if stacks == 0 || stacks > 3 {
		t.Errorf("%d stacks end in line %d, want one", stacks, at.line)
	}
}

// The last dump, taken at normal exit, still shows what the program held: Python frees it only afterwards.
func TestAProgramThatEndsAtOnceIsProfiledAtItsExit(t *testing.T) {
	for _, py := range findPythons(t, python.Supported) {
		t.Run(py.String(), func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(here, "leak_basic/leak_basic.py")
			told := filepath.Join(t.TempDir(), "truth")
			j := startRun(t, []string{"HEAPWIRE_JUMP=off"}, nil, py.Path, program, "--rounds", "5", "--blocks", "128", "--pause", "0", "--truth", told)
			j.succeed()
			truths, done, err := readTruths(told)
			if err != nil || !done {
				t.Fatalf("reading the truth: %v, complete %v", err, done)
			}
			paths, err := j.profilePaths(truths[0].PID)
			if err != nil {
				t.Fatal(err)
			}
			if len(paths) != 1 || !strings.HasSuffix(paths[0], ".exit.pb.gz") {
				t.Fatalf("profiles %v: want one, of the exit", paths)
			}
			p, err := readProfile(paths[0])
			if err != nil {
				t.Fatal(err)
			}
			checkSites(t, py, p, program, truths[0])
		})
	}
}

// Unknown interpreters: the job runs as ever, bytes are counted, stacks are native.
func TestInterpretersWithoutAFrameTableRunWithNativeFramesOnly(t *testing.T) {
	program := filepath.Join(here, "cases/unsupported.py")
	found := false
	for _, py := range findPythons(t, func(p python) bool { return !p.Supported() && p.Kind == "CPython" }) {
		found = true
		t.Run(py.String(), func(t *testing.T) {
			t.Parallel()
			told := filepath.Join(t.TempDir(), "truth")
			j := startRun(t, nil, nil, py.Path, program, told)
			j.succeed()
			truths, _, err := readTruths(told)
			if err != nil || len(truths) != 1 {
				t.Fatalf("reading the truth: %v, %d processes", err, len(truths))
			}
			paths, err := j.profilePaths(truths[0].PID)
			if err != nil || len(paths) == 0 {
				t.Fatalf("no profile: %v\n%s", err, j.report())
			}
			p, err := readProfile(paths[len(paths)-1])
			if err != nil {
				t.Fatal(err)
			}
			got := live(t, p, func(*profile.Sample) bool { return true })
			want := truths[0].Sites["malloc"].bytes()
			// The interpreter's own few MiB come on top.
			if got < want*85/100 || got > want*115/100+16<<20 {
				t.Errorf("%.2f MiB live, truth %.2f MiB and the interpreter's own", mib(got), mib(want))
			}
			for _, s := range p.Sample {
				if f, ok := innermostPython(s); ok {
					t.Errorf("a Python frame under an interpreter that is not known: %s:%d", f.file, f.line)
					break
				}
			}
			if n := strings.Count(strings.ToLower(j.stderr.String()), "native frames"); n != 1 {
				t.Errorf("native frames only is said %d times, want once:\n%s", n, &j.stderr)
			}
		})
	}
	if !found {
		t.Skip("every CPython on this machine is supported")
	}
}

// growth is the change of a line's live bytes from a job's first to its last profile.
func (j *job) growth(pid int, program string, line int64) int64 {
	j.t.Helper()
	paths, err := j.profilePaths(pid)
	if err != nil || len(paths) < 2 {
		j.t.Fatalf("%d profiles (%v), want two or more\n%s", len(paths), err, j.report())
	}
	at := func(path string) int64 {
		p, err := readProfile(path)
		if err != nil {
			j.t.Fatal(err)
		}
		return liveAt(j.t, p, program, line)
	}
	return at(paths[len(paths)-1]) - at(paths[0])
}

// The summary of a run names what grew, and not the healthy cache; the control is the same cache without its expiry.
func TestTheSummaryNamesTheLeaksAndNotTheHealthyCache(t *testing.T) {
	py := onePython(t)
	program := filepath.Join(here, "leak_basic/leak_basic.py")
	places := markedPlaces(t, program)
	for name, c := range map[string]struct {
		args  []string
		decoy bool
	}{
		"healthy":       {nil, false},
		"never expires": {[]string{"--cache-never-expires"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := filepath.Join(t.TempDir(), "truth")
			args := []string{py.Path, program, "--rounds", "30", "--blocks", "32", "--pause", "0.05", "--truth", told}
			j := startRun(t, nil, []string{"--interval", "200ms"}, append(args, c.args...)...)
			j.succeed()
			truths, _, err := readTruths(told)
			if err != nil || len(truths) != 1 {
				t.Fatalf("reading the truth: %v, %d processes", err, len(truths))
			}
			grown := map[string]int64{}
			for site, at := range places {
				grown[site] = j.growth(truths[0].PID, program, at.line)
			}
			if grown["uploads"] < 10<<20 || grown["rows"] < 5<<20 {
				t.Errorf("the leaks grew by %v", grown)
			}
			if got := grown["pages"] > 10<<20; got != c.decoy {
				t.Errorf("the cache grew: %v, want %v (%v)", got, c.decoy, grown)
			}
			summary, err := os.ReadFile(filepath.Join(j.out, "summary.txt"))
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{string(summary), j.stderr.String()} {
				for site, want := range map[string]bool{"uploads": true, "rows": true, "pages": c.decoy} {
					at := places[site]
					line := filepath.Base(program) + ":" + strconv.FormatInt(at.line, 10)
					if got := strings.Contains(text, at.bare()) && strings.Contains(text, line); got != want {
						t.Errorf("%s at %s in the summary: %v, want %v\n%s", at.bare(), line, got, want, text)
					}
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/heapwire/heapwire/internal/syncbuffer"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

// ---------------------------------------------------------------- programs

var built struct {
	sync.Mutex
	done map[string]error
}

// buildProgram builds shim/test/programs/<name>.c into build/programs, once a test run: a library if its name has it so.
func buildProgram(t *testing.T, name string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, "build", "programs")
	out := filepath.Join(folder, name)
	args := []string{"-O1", "-g", "-Wall", "-Wextra", "-Werror"}
	if isLibrary := strings.HasPrefix(name, "lib"); isLibrary {
		out += ".so"
		args = append(args, "-shared", "-fPIC")
	}
	built.Lock()
	defer built.Unlock()
	if built.done == nil {
		built.done = map[string]error{}
	}
	err, done := built.done[name]
	if !done {
		if err = os.MkdirAll(folder, 0o755); err == nil {
			fresh := out + ".new" // another test run may have the old one open
			source := filepath.Join("programs", strings.TrimPrefix(name, "lib")+".c")
			if text, e := exec.Command("gcc", append(args, "-o", fresh, source, "-lpthread")...).CombinedOutput(); e != nil {
				err = fmt.Errorf("gcc: %w\n%s", e, text)
			} else {
				err = os.Rename(fresh, out)
			}
		}
		built.done[name] = err
	}
	if err != nil {
		t.Fatalf("building %s: %v", name, err)
	}
	return out
}

// libraryCopies makes n libraries of one file: the loader tells libraries apart by their files.
func libraryCopies(t *testing.T, library string, n int) []string {
	t.Helper()
	text, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	copies := make([]string, n)
	for i := range copies {
		copies[i] = filepath.Join(folder, fmt.Sprintf("libtls%02d.so", i))
		if err := os.WriteFile(copies[i], text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return copies
}

// ---------------------------------------------------------------- running, with a watchdog a round

// An outcome is what became of a program that prints a byte a round.
type outcome struct {
	rounds  int
	hung    bool
	code    int // 128 + n for signal n
	stderr  string
	longest time.Duration // between two rounds
}

func (o outcome) String() string {
	what := "ended well"
	switch {
	case o.hung:
		what = "hung"
	case o.code > 128:
		what = "was ended by a signal, " + syscall.Signal(o.code-128).String()
	case o.code != 0:
		what = fmt.Sprintf("ended with status %d", o.code)
	}
	s := fmt.Sprintf("%s after %d rounds", what, o.rounds)
	if text := strings.TrimSpace(o.stderr); text != "" {
		if len(text) > 600 {
			text = text[:300] + " … " + text[len(text)-300:]
		}
		s += ": " + text
	}
	return s
}

func (o outcome) well(rounds int) bool { return !o.hung && o.code == 0 && o.rounds == rounds }

// A watchdog ends a program, and all that it started, when a round takes longer than its limit. One that expects a hang does
// so too when nothing of the program has run for a while, which is sooner.
type watchdog struct {
	limit       time.Duration
	expectsHang bool
}

// run runs a command that prints a byte a round.
func (w watchdog) run(t *testing.T, env []string, command ...string) outcome {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = pythons.CleanEnv(env...)
	return w.watch(t, cmd)
}

func (w watchdog) watch(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = in
	err = cmd.Start()
	in.Close()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	group := cmd.Process.Pid
	rounds := make(chan int)
	go func() {
		defer close(rounds)
		buf := make([]byte, 4096)
		for {
			n, err := out.Read(buf)
			if n > 0 {
				rounds <- n
			}
			if err != nil {
				return
			}
		}
	}()
	var o outcome
	last, look := time.Now(), time.NewTicker(250*time.Millisecond)
	defer look.Stop()
	signature, still := "", 0
	ended := false
	for !ended {
		select {
		case n, more := <-rounds:
			ended = !more
			o.longest = max(o.longest, time.Since(last))
			last, still = time.Now(), 0
			o.rounds += n
		case <-look.C:
			if w.expectsHang {
				if now := activity(group); now != signature {
					signature, still = now, 0
				} else {
					still++
				}
			}
			if !o.hung && (still >= 6 || time.Since(last) >= w.limit) {
				o.hung = true
				syscall.Kill(-group, syscall.SIGKILL)
			}
		}
	}
	err = cmd.Wait()
	o.stderr = stderr.String()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status := exit.Sys().(syscall.WaitStatus)
		if o.code = status.ExitStatus(); status.Signaled() {
			o.code = 128 + int(status.Signal())
		}
	} else if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return o
}

// activity tells two moments apart if any thread of a process group ran between them.
func activity(group int) string {
	var s strings.Builder
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 3 || fields[2] != strconv.Itoa(group) {
			continue
		}
		tasks, _ := filepath.Glob(filepath.Join(filepath.Dir(stat), "task", "*", "status"))
		for _, task := range tasks {
			text, _ := os.ReadFile(task)
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "State:") || strings.Contains(line, "ctxt_switches:") {
					s.WriteString(task + line)
				}
			}
			schedule, _ := os.ReadFile(filepath.Join(filepath.Dir(task), "schedstat"))
			s.Write(schedule)
		}
	}
	return s.String()
}

// ---------------------------------------------------------------- the dangers

// A danger is a program that does one dangerous thing, again and again: under a profiler written the naive way it comes to
// grief, under the shim it does not.
type danger struct {
	name    string
	naive   func(t *testing.T) []string // the environment of the naive way; nil: there is none
	trial   int                         // rounds given to the naive way
	short   int                         // rounds in a test run
	long    int                         // rounds in a soak, a Python
	python  string                      // a function of dangers.py …
	program string                      // … or a program in C
	args    func(t *testing.T) []string
	env     []string // under the shim
	front   string   // a library that comes before the shim
	window  bool     // the library with the tests' window
}

func naiveMalloc(way string) func(*testing.T) []string {
	return func(t *testing.T) []string {
		return []string{"NAIVE=" + way, "LD_PRELOAD=" + buildProgram(t, "libnaive_malloc")}
	}
}

// ownJemalloc is a jemalloc as it comes, every allocation sampled, with libraries in front.
func ownJemalloc(t *testing.T, front ...string) []string {
	t.Helper()
	const jemalloc = "libjemalloc.so.2"
	probe := exec.Command("/bin/true")
	probe.Env = []string{"LD_PRELOAD=" + jemalloc}
	if out, err := probe.CombinedOutput(); err != nil || len(out) != 0 {
		return nil
	}
	return []string{
		"LD_PRELOAD=" + strings.Join(append(front, jemalloc), ":"),
		"MALLOC_CONF=prof:true,lg_prof_sample:0,prof_prefix:" + filepath.Join(t.TempDir(), "je"),
	}
}

// Two of three small objects are sampled, with a dump every now and then.
var mostObjects = []string{"HEAPWIRE_SAMPLE_BYTES=64", "HEAPWIRE_INTERVAL=200ms"}

var dangers = []danger{
	{
		name: "a JIT registers its frames with libgcc", program: "jit_frames", trial: 100, short: 500, long: 5000,
		naive: func(t *testing.T) []string { return ownJemalloc(t) },
	},
	{
		name: "the loader's lock is held by a thread that wants a lock", program: "loader_lock", trial: 10, short: 300, long: 5000,
		naive: func(t *testing.T) []string {
			env := ownJemalloc(t, buildProgram(t, "libnaive_hook"))
			if env == nil {
				return nil
			}
			return append(env, "NAIVE=libunwind")
		},
	},
	{
		name: "200 threads use 64 libraries that come by dlopen", program: "tls_storm", trial: 2, short: 3, long: 100,
		args: func(t *testing.T) []string {
			return append([]string{"200"}, libraryCopies(t, buildProgram(t, "libtls_library"), 64)...)
		},
		front: "librealloc_twice",
		naive: func(t *testing.T) []string {
			env := ownJemalloc(t, buildProgram(t, "librealloc_twice"), buildProgram(t, "libnaive_hook"))
			if env == nil {
				return nil
			}
			return append(env, "NAIVE=tls", "NAIVE_TLS="+libraryCopies(t, buildProgram(t, "libtls_library"), 1)[0])
		},
	},
	{name: "the GIL is held while a thread that allocates is joined", python: "joined", trial: 10, short: 50, long: 200, naive: naiveMalloc("gil")},
	{name: "the GIL's holder wants a lock whose holder allocates", python: "lock_order", trial: 10, short: 50, long: 200, naive: naiveMalloc("gil")},
	{
		name: "fork while others allocate and the clock dumps", python: "fork_while_dumping", trial: 50, short: 8, long: 60,
		env: []string{"HEAPWIRE_INTERVAL=100ms"}, naive: naiveMalloc("lock"),
	},
	{
		name: "fork while a callback under the loader's lock wants the GIL", python: "fork_under_the_loaders_lock", short: 10, long: 60,
		env: []string{"HEAPWIRE_INTERVAL=100ms"},
	},
	{name: "the interpreter ends under daemon threads that allocate", python: "finalise", trial: 20, short: 5, long: 50, naive: naiveMalloc("gil")},
	{name: "os._exit in a thread", python: "leave_from_a_thread", short: 5, long: 50},
	{name: "os._exit in a Python signal handler", python: "leave_from_a_handler", short: 5, long: 50},
	{
		name: "_exit in a signal handler inside malloc", program: "leave_anywhere", trial: 100, short: 5, long: 100,
		naive: func(t *testing.T) []string { return ownJemalloc(t, buildProgram(t, "libnaive_exit")) },
	},
	{name: "a stack of 16 KiB", program: "keeps_errno", trial: 10, short: 100, long: 1000, naive: naiveMalloc("stack")},
	{name: "errno", program: "keeps_errno", trial: 10, short: 100, long: 1000, naive: naiveMalloc("errno")},
	{
		name: "a number is closed that is free", program: "closes_twice", trial: 200, short: 50, long: 1000,
		env: []string{"HEAPWIRE_INTERVAL=100ms"}, naive: naiveMalloc("files"),
	},
	{name: "signals whose handler allocates, in C", program: "signal_storm", trial: 50, short: 20, long: 500, naive: naiveMalloc("lock"), window: true},
	{name: "signals whose handler allocates, in Python", python: "signals", short: 10, long: 100},
	{name: "short threads of Python and of C", python: "threads", short: 20, long: 100, env: []string{"HEAPWIRE_INTERVAL=100ms"}},
	{name: "forks of forks with sampled objects", python: "objects_in_children", short: 5, long: 50, env: mostObjects},
	{name: "the interpreter ends under daemon threads that make objects", python: "objects_at_the_end", short: 5, long: 50, env: mostObjects},
	{name: "tracemalloc comes and goes", python: "traced", short: 5, long: 50, env: mostObjects},
	{name: "another allocator of objects comes and goes", python: "on_top", short: 20, long: 200, env: mostObjects},
	{name: "interpreters end while others make objects", python: "interpreters", short: 3, long: 30, env: mostObjects},
}

func (d danger) command(t *testing.T, p pythons.Python, rounds int) []string {
	var command []string
	if d.python != "" {
		command = []string{p.Path, "programs/dangers.py", buildProgram(t, "libdangers"), d.python, strconv.Itoa(rounds)}
	} else {
		command = []string{buildProgram(t, d.program), strconv.Itoa(rounds)}
	}
	if d.args != nil {
		command = append(command, d.args(t)...)
	}
	return command
}

// underTheShim runs some rounds with every allocation sampled.
func (d danger) underTheShim(t *testing.T, limit time.Duration, p pythons.Python, rounds int) outcome {
	preload := library
	if d.window {
		preload = testLibrary
	}
	if d.front != "" {
		preload = buildProgram(t, d.front) + ":" + preload
	}
	env := append([]string{"LD_PRELOAD=" + preload, "HEAPWIRE_SPOOL=" + filepath.Join(t.TempDir(), "spool"), "HEAPWIRE_TARGET=all", everything}, d.env...)
	return watchdog{limit: limit}.run(t, env, d.command(t, p, rounds)...)
}

// naively tells what became of the program under the naive way: an empty string if it did no harm, or cannot be had here.
func (d danger) naively(t *testing.T, p pythons.Python) (harm, why string) {
	env := d.naive(t)
	if env == nil {
		return "", "no jemalloc to be preloaded"
	}
	o := watchdog{limit: roundLimit, expectsHang: true}.run(t, env, d.command(t, p, d.trial)...)
	switch {
	case o.code == 77:
		return "", o.stderr
	case o.well(d.trial):
		return "", "the naive way does no harm on this machine"
	}
	return o.String(), ""
}

const roundLimit = 5 * time.Second

// The naive way shows that the program is one in which a profiler can fail; then the shim has to live with it. Under the oldest
// and the newest Python, under all of them with `make test-matrix`.
func TestWhatHurtsNaiveProfilersDoesNotHurt(t *testing.T) {
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	var supported []pythons.Python
	for _, p := range all {
		if p.Supported() {
			supported = append(supported, p)
		}
	}
	if len(supported) > 2 && !full {
		supported = []pythons.Python{supported[0], supported[len(supported)-1]}
	}
	for _, d := range dangers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			those := supported
			if d.python == "" {
				those = []pythons.Python{{}}
			} else if len(those) == 0 {
				t.Skip("no supported interpreter on this machine")
			}
			cannotTell := ""
			if d.naive != nil {
				harm, why := d.naively(t, those[len(those)-1])
				if cannotTell = why; why == "" {
					t.Log("the naive way:", harm)
				}
			}
			for _, p := range those {
				if o := d.underTheShim(t, 2*roundLimit, p, d.short); !o.well(d.short) {
					t.Fatalf("%s under the shim: %v", p, o)
				}
			}
			if cannotTell != "" && !t.Failed() {
				t.Skip("did no harm, but cannot tell here: " + strings.TrimSpace(cannotTell))
			}
		})
	}
}

// ---------------------------------------------------------------- killed at any instant

// half tells whether a dump is cut: jemalloc's text and each section have their ends.
func half(text []byte, shims bool) bool {
	if !bytes.Contains(text, []byte("\nMAPPED_LIBRARIES:\n")) {
		return true
	}
	if !shims {
		return !bytes.HasSuffix(text, []byte("\n"))
	}
	i := bytes.Index(text, []byte("\nHEAPWIRE_FRAMES: 1\n"))
	return i < 0 || !bytes.HasSuffix(text, []byte("\n\n"))
}

// killed runs the program, kills it at a random instant after it is ready, and counts whole and half dumps under final names.
func killed(t *testing.T, env []string, folder string, shims bool) (whole, halves int) {
	t.Helper()
	cmd := exec.Command(buildProgram(t, "many_stacks"), "11")
	cmd.Env = pythons.CleanEnv(env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Errorf("the program did not come up: %v", err)
	}
	timer := time.AfterFunc(time.Duration(rand.IntN(400))*time.Millisecond, func() { cmd.Process.Kill() })
	defer timer.Stop()
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("the program ended by itself: %v", cmd.ProcessState)
	}
	err = filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".heap") {
			return err
		}
		text, err := os.ReadFile(path)
		if half(text, shims) {
			halves++
		} else {
			whole++
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return whole, halves
}

func killedUnderTheShim(t *testing.T) (whole, halves int) {
	spool := filepath.Join(t.TempDir(), "spool")
	return killed(t, []string{
		"LD_PRELOAD=" + library, "HEAPWIRE_SPOOL=" + spool, "HEAPWIRE_TARGET=all", "HEAPWIRE_INTERVAL=100ms", everything,
	}, spool, true)
}

func TestAKilledProcessLeavesNoHalfDump(t *testing.T) {
	t.Parallel()
	naive := 0
	for i := 0; i < 10 && naive == 0; i++ {
		folder := t.TempDir()
		env := ownJemalloc(t)
		if env == nil {
			break
		}
		env[1] = "MALLOC_CONF=prof:true,lg_prof_sample:0,lg_prof_interval:22,prof_prefix:" + filepath.Join(folder, "je")
		_, halves := killed(t, env, folder, false)
		naive += halves
	}
	t.Logf("jemalloc's own interval dumps: %d half dumps", naive)
	whole := 0
	for i := range 8 {
		w, halves := killedUnderTheShim(t)
		whole += w
		if halves != 0 {
			t.Errorf("run %d: %d half dumps under final names", i, halves)
		}
	}
	t.Logf("%d whole dumps", whole)
	if whole == 0 {
		t.Error("no dump at all")
	}
	if naive == 0 && !t.Failed() {
		t.Skip("no half dump, but cannot tell here: the naive way left none either")
	}
}

// ---------------------------------------------------------------- a full disk

// A small file system, for whoever may mount one.
func smallDisk(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("a file system of 1 MiB cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, 0); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return folder
}

// until waits for something that has to come, a few times a second.
func until(t *testing.T, what string, there func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !there(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

func TestAFullDiskCostsDumpsAndNotTheJob(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	filler := filepath.Join(disk, "filler")
	fill := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		size := int64(0)
		for n := 0; err == nil; size += int64(n) {
			n, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		// A dump begins and cannot end.
		if err := f.Truncate(max(0, size-8192)); err != nil {
			t.Fatal(err)
		}
	}
	start := func(env []string) (*exec.Cmd, io.Closer, *syncbuffer.Buffer, *syncbuffer.Buffer) {
		cmd := exec.Command(buildProgram(t, "many_stacks"), "7")
		cmd.Env = pythons.CleanEnv(env...)
		stdout, stderr := &syncbuffer.Buffer{}, &syncbuffer.Buffer{}
		cmd.Stdout, cmd.Stderr = stdout, stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd, in, stdout, stderr
	}

	fill()
	naive := 0
	if env := ownJemalloc(t); env != nil {
		env[1] = "MALLOC_CONF=prof:true,lg_prof_sample:0,lg_prof_interval:22,prof_prefix:" + filepath.Join(disk, "je")
		cmd, in, _, stderr := start(env)
		halves := func() []string {
			var cut []string
			names, _ := filepath.Glob(filepath.Join(disk, "je*.heap"))
			for _, name := range names {
				if text, err := os.ReadFile(name); err == nil && half(text, false) {
					cut = append(cut, name)
				}
			}
			return cut
		}
		until(t, "what jemalloc's own dumps do on a full disk", func() bool {
			return len(halves()) > 0 || strings.Count(stderr.String(), "\n") > 3
		})
		in.Close()
		cmd.Wait()
		naive = len(halves())
		t.Logf("jemalloc's own dumps: %d cut files, %d lines on stderr", naive, strings.Count(stderr.String(), "\n"))
		names, _ := filepath.Glob(filepath.Join(disk, "je*.heap"))
		for _, name := range names {
			os.Remove(name)
		}
	}

	spool := filepath.Join(disk, "spool")
	cmd, in, stdout, stderr := start([]string{
		"LD_PRELOAD=" + library, "HEAPWIRE_SPOOL=" + spool, "HEAPWIRE_TARGET=all", "HEAPWIRE_INTERVAL=100ms", everything,
	})
	until(t, "the message", func() bool { return strings.Contains(stderr.String(), "\n") })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	dumps := func() []string {
		names, _ := filepath.Glob(filepath.Join(spool, "*", "*.heap"))
		return names
	}
	until(t, "a dump after there is room again", func() bool { return len(dumps()) > 0 })
	first, err := os.ReadFile(dumps()[0])
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(first, []byte("\ndumps_failed=0\n")) || !bytes.Contains(first, []byte("\ndumps_failed=")) {
		t.Error("the first dump that arrived does not tell of those that were lost")
	}
	fill() // once more: nothing more is said
	seen := len(dumps())
	until(t, "a second loss", func() bool {
		left, _ := filepath.Glob(filepath.Join(spool, "*", ".0*"))
		return len(left) > 0 || len(dumps()) > seen+3
	})
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the job: %v", err)
	}
	if got := stdout.String(); got != "ready\nwent on\n" {
		t.Errorf("the job said %q", got)
	}
	if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "No space left on device") {
		t.Errorf("stderr %q, want one message about the full disk", got)
	}
	for _, name := range dumps() {
		if text, err := os.ReadFile(name); err != nil || half(text, true) {
			t.Errorf("%s is cut (%v)", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(spool, "*", ".0*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

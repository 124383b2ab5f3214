// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

const limit = 120 * time.Second // watchdog of one process

var library, testLibrary string

func TestMain(m *testing.M) {
	root, err := filepath.Abs("../..")
	if err != nil {
		fmt.Fprintln(os.Stderr, "finding the repository:", err)
		os.Exit(1)
	}
	library = filepath.Join(root, "bin", "libheapwire.so")
	testLibrary = filepath.Join(root, "build", "shim", "libheapwire_test.so")
	for built, how := range map[string]string{library: "make build", testLibrary: "make -C shim test-library"} {
		if _, err := os.Stat(built); err != nil {
			fmt.Fprintf(os.Stderr, "%v: run %s\n", err, how)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// ---------------------------------------------------------------- the library's ELF file

func openLibrary(t *testing.T) *elf.File {
	t.Helper()
	f, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestExportsAreTheMallocFamilyExitAndExec(t *testing.T) {
	symbols, err := openLibrary(t).DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && !strings.HasPrefix(s.Name, "heapwire_") {
			got = append(got, s.Name)
		}
	}
	slices.Sort(got)
	want := []string{
		"_Exit", "_exit", "aligned_alloc", "calloc", "execl", "execle", "execlp", "execv", "execve", "execveat", "execvp", "execvpe",
		"fexecve", "free", "malloc", "malloc_usable_size", "memalign", "posix_memalign", "posix_spawn", "posix_spawnp", "pvalloc",
		"realloc", "valloc",
	}
	if !slices.Equal(got, want) {
		t.Errorf("exported: %v\nwanted:   %v", got, want)
	}
}

// A variable read through __tls_get_addr inside malloc lets ld.so free a thread's table twice (glibc >= 2.39).
func TestNoThreadLocalVariableIsFoundThroughTheLoader(t *testing.T) {
	f := openLibrary(t)
	seen := 0
	for _, section := range f.Sections {
		if section.Type != elf.SHT_RELA {
			continue
		}
		data, err := section.Data()
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+24 <= len(data); i += 24 {
			seen++
			switch kind := elf.R_X86_64(f.ByteOrder.Uint64(data[i+8:]) & 0xffffffff); kind {
			case elf.R_X86_64_DTPMOD64, elf.R_X86_64_DTPOFF64, elf.R_X86_64_TLSDESC:
				t.Errorf("%s: a relocation of kind %v", section.Name, kind)
			}
		}
	}
	if seen == 0 {
		t.Error("no relocation was looked at")
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == "__tls_get_addr" {
			t.Error("__tls_get_addr is called")
		}
	}
}

func TestNothingIsBoundLazily(t *testing.T) {
	flags, err := openLibrary(t).DynValue(elf.DT_FLAGS)
	if err != nil {
		t.Fatal(err)
	}
	if len(flags) == 0 || elf.DynFlag(flags[0])&elf.DF_BIND_NOW == 0 {
		t.Errorf("DT_FLAGS = %v, want BIND_NOW", flags)
	}
}

func TestNeedsNothingButTheCLibraryAndLibgcc(t *testing.T) {
	got, err := openLibrary(t).ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range got {
		if !slices.Contains([]string{"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}, lib) {
			t.Errorf("needs %s", lib)
		}
	}
}

// ---------------------------------------------------------------- running programs under it

type result struct {
	stdout, stderr string
	code           int // 128 + n for signal n
	spool          string
	dumps          []string // <process>/<file>, in order
}

// under runs a command with a library preloaded.
func under(t *testing.T, lib string, env []string, command ...string) result {
	t.Helper()
	spool := filepath.Join(t.TempDir(), "spool")
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = pythons.CleanEnv(append([]string{"LD_PRELOAD=" + lib, "HEAPWIRE_SPOOL=" + spool}, env...)...)
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%v: still running after %v\n%s%s", command, limit, &stdout, &stderr)
	}
	r := result{stdout: stdout.String(), stderr: stderr.String(), spool: spool}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status := exit.Sys().(syscall.WaitStatus)
		if r.code = status.ExitStatus(); status.Signaled() {
			r.code = 128 + int(status.Signal())
		}
	} else if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	r.dumps, err = filepath.Glob(filepath.Join(spool, "*", "*.heap"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.dumps {
		r.dumps[i], _ = filepath.Rel(spool, r.dumps[i])
	}
	return r
}

func compileC(t *testing.T, flags ...string) string {
	t.Helper()
	source := flags[0]
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	args := append([]string{"-O1", "-Wall", "-o", out, source, "-lpthread"}, flags[1:]...)
	if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, text)
	}
	return out
}

func eachPython(t *testing.T, keep func(pythons.Python) bool, f func(*testing.T, pythons.Python)) {
	t.Helper()
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range all {
		if keep(p) {
			n++
			t.Run(p.String(), func(t *testing.T) { t.Parallel(); f(t, p) })
		}
	}
	if n == 0 {
		t.Skip("no such interpreter on this machine")
	}
}

const everything = "HEAPWIRE_SAMPLE_BYTES=1"

// ---------------------------------------------------------------- captures

func TestCapturesAreWhatPythonSays(t *testing.T) {
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, testLibrary, nil, p.Path, "frames.py")
		if r.code != 0 || !strings.Contains(r.stdout, " 0 wrong") {
			t.Errorf("exit status %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		t.Log(strings.TrimSpace(r.stdout))
	})
}

// Full stacks have the C functions between Python frames in their places: told by the stack, not by names.
func TestFullStacksKeepTheOrderOfPythonAndC(t *testing.T) {
	chain := compileC(t, "programs/chain.c", "-shared", "-fPIC")
	full := []string{"HEAPWIRE_STACKS=full"}
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		if r := under(t, testLibrary, full, p.Path, "chains.py", chain); r.code != 0 {
			t.Errorf("exit status %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		if r := under(t, testLibrary, full, p.Path, "frames.py"); r.code != 0 {
			t.Errorf("exit status %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		if r := under(t, testLibrary, nil, p.Path, "chains.py", chain); r.code == 0 {
			t.Error("leaf stacks pass as well: the test cannot tell")
		}
	})
}

func TestLayoutsAreThoseOfTheHeaders(t *testing.T) {
	withHeaders := func(p pythons.Python) bool { return p.Supported() && p.Headers }
	eachPython(t, withHeaders, func(t *testing.T, p pythons.Python) {
		variants := []string{"-UPy_GIL_DISABLED"}
		if p.Minor >= 13 {
			variants = append(variants, "-DPy_GIL_DISABLED=1") // the headers know both builds
		}
		for _, variant := range variants {
			program := compileC(t, "programs/offsets.c", "-w", variant, "-I"+p.Include, "-I"+filepath.Join(p.Include, "internal"))
			out, err := exec.Command(program).Output()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			t.Log(strings.TrimSpace(string(out)))
		}
	})
}

// A layout with one wrong offset is found by the look that every interpreter is given after start.
func TestTheSelfCheckFindsAWrongLayout(t *testing.T) {
	const program = `
import ctypes, sys
check = ctypes.PyDLL(None).heapwire_test_selfcheck
check.restype = ctypes.c_char_p
def inner():
    return check(int(sys.argv[1])).decode()
def outer():
    return inner()
print(outer())
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		for field, want := range []string{"on", "off: a walk's line", "off: a walk's function", "off: a walk's", "off: a walk's line"} {
			r := under(t, testLibrary, nil, p.Path, "-c", program, fmt.Sprint(field))
			if !strings.HasPrefix(r.stdout, want) {
				t.Errorf("field %d: %q, want %q…; stderr %s", field, r.stdout, want, r.stderr)
			}
			if said := strings.Count(r.stderr, "native frames only"); said != min(field, 1) {
				t.Errorf("field %d: said %d times: %s", field, said, r.stderr)
			}
		}
	})
}

func TestAnUnknownInterpreterIsSaidOnceAndRuns(t *testing.T) {
	unknown := func(p pythons.Python) bool { return p.Kind == "CPython" && !p.Supported() }
	eachPython(t, unknown, func(t *testing.T, p pythons.Python) {
		r := under(t, library, []string{"HEAPWIRE_SAMPLE_BYTES=64KiB"}, p.Path, "-c", "x = [bytearray(100000) for i in range(100)]; print(len(x))")
		if r.code != 0 || r.stdout != "100\n" {
			t.Errorf("exit status %d, stdout %q", r.code, r.stdout)
		}
		if strings.Count(r.stderr, "heapwire[") != 1 || !strings.Contains(r.stderr, "native frames only") {
			t.Errorf("stderr: %q, want one message about native frames", r.stderr)
		}
		if len(r.dumps) != 1 {
			t.Errorf("dumps: %v, want one", r.dumps)
		}
	})
}

// ---------------------------------------------------------------- what may not happen

func TestRegisteringUnwindTablesDoesNotHang(t *testing.T) {
	program := compileC(t, "programs/register_frame.c")
	r := under(t, library, []string{"HEAPWIRE_TARGET=all", everything}, program)
	if r.code != 0 {
		t.Errorf("exit status %d: %s%s", r.code, r.stdout, r.stderr)
	}
}

func TestTheWholeFamilyWorksOnASmallStack(t *testing.T) {
	for _, flags := range [][]string{{"-pie", "-fPIE"}, {"-no-pie"}} {
		program := compileC(t, append([]string{"programs/family.c"}, flags...)...)
		r := under(t, library, []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_GIANT=0", everything}, program)
		if r.code != 0 || r.stdout != "good\n" || r.stderr != "" {
			t.Errorf("%v: exit status %d: %s%s", flags, r.code, r.stdout, r.stderr)
		}
		if len(r.dumps) != 1 {
			t.Errorf("%v: dumps: %v, want the one at exit", flags, r.dumps)
		}
	}
}

func TestEveryWayOutKeepsItsStatusAndLeavesALastDump(t *testing.T) {
	program := compileC(t, "programs/ways_out.c")
	for _, test := range []struct {
		way   string
		code  int
		dumps int
	}{
		{"return", 5, 1}, {"exit", 5, 1}, {"_exit", 5, 1}, {"_Exit", 5, 1}, {"signal", 5, 1}, {"vfork", 5, 1},
		{"quick_exit", 5, 0}, {"kill", 137, 0},
	} {
		r := under(t, library, []string{"HEAPWIRE_TARGET=all"}, program, test.way)
		if r.code != test.code || len(r.dumps) != test.dumps {
			t.Errorf("%s: exit status %d, dumps %v; want %d and %d dumps", test.way, r.code, r.dumps, test.code, test.dumps)
		}
		r = under(t, library, []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_EXIT_DUMP=off"}, program, test.way)
		if r.code != test.code || len(r.dumps) != 0 {
			t.Errorf("%s without exit dumps: exit status %d, dumps %v", test.way, r.code, r.dumps)
		}
	}
}

// The clock is a thread, and must not be the one that keeps a process: found by CPython's test_threading, which hung.
func TestAProcessEndsWithItsLastThread(t *testing.T) {
	program := compileC(t, "programs/last_thread.c")
	for _, test := range []struct {
		way, stdout string
		code        int
	}{
		{way: "main", stdout: "main's last words\n"},
		{way: "thread", stdout: "main's last words\nthe thread's last words\n"},
		{way: "fork", stdout: "the child's last words\n", code: 3},
	} {
		r := under(t, library, []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_SAMPLE_BYTES=64KiB"}, program, test.way)
		if r.code != test.code || r.stdout != test.stdout || len(r.dumps) == 0 || r.stderr != "" {
			t.Errorf("%s: exit status %d, stdout %q, dumps %v, stderr %s", test.way, r.code, r.stdout, r.dumps, r.stderr)
		}
	}
}

// The clock has a table of descriptors of its own (unit_descriptors has the kernels and filters that do not let it).
func TestTheProgramsDescriptorsAreItsOwn(t *testing.T) {
	env := []string{"HEAPWIRE_INTERVAL=100ms", "HEAPWIRE_SAMPLE_BYTES=4KiB"}
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		for way, want := range map[string]string{"own": "[0, 1, 2]\n", "none left": "[0, 0, 0] True\n", "close all": "True\n"} {
			r := under(t, library, env, p.Path, "programs/descriptors.py", way)
			if r.code != 0 || r.stdout != want || r.stderr != "" {
				t.Errorf("%s: exit status %d, stdout %q, stderr %s", way, r.code, r.stdout, r.stderr)
			}
			for _, name := range r.dumps {
				if lost := readDump(t, filepath.Join(r.spool, name)).Meta.Raw["dumps_failed"]; lost != "0" {
					t.Errorf("%s: %s says that %s dumps before it were lost", way, name, lost)
				}
			}
		}

		cmd := exec.Command(p.Path, "programs/descriptors.py", "end of file")
		cmd.Env = pythons.CleanEnv(append(env, "LD_PRELOAD="+library, "HEAPWIRE_SPOOL="+t.TempDir())...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(limit, func() { cmd.Process.Kill() })
		defer timer.Stop()
		_, err = io.Copy(io.Discard, out) // to its end, which comes before the process's
		in.Close()
		if wait := cmd.Wait(); err != nil || wait != nil || stderr.String() != "went on" {
			t.Errorf("end of file: %v, %v, stderr %q", err, wait, &stderr)
		}
	})
}

func TestOtherProgramsGetNoThreadAndNoFile(t *testing.T) {
	for _, env := range [][]string{nil, {"HEAPWIRE_TARGET=none"}, {"HEAPWIRE=off", "HEAPWIRE_TARGET=all"}} {
		r := under(t, library, env, "sh", "-c", "grep Threads: /proc/self/status; exit 3")
		if r.code != 3 || strings.Fields(r.stdout)[1] != "1" || r.stderr != "" {
			t.Errorf("%v: exit status %d, %q, %q", env, r.code, r.stdout, r.stderr)
		}
		if _, err := os.Stat(r.spool); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: the spool is there: %v", env, err)
		}
	}
}

const forkLoop = `
import os, sys, warnings
seen = []
warnings.showwarning = lambda *a, **k: seen.append(a)
warnings.simplefilter("always")
keep = [bytearray(100000) for _ in range(200)]
for i in range(60):
    pid = os.fork()
    if pid == 0:
        os._exit(i)
    assert os.waitpid(pid, 0)[1] >> 8 == i
print(len(seen))
`

// From 3.12 on os.fork warns in a process with several threads, counting the kernel's.
func TestForkGivesNoWarningForOurThread(t *testing.T) {
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, []string{"HEAPWIRE_INTERVAL=1s"}, p.Path, "-c", forkLoop)
		if r.code != 0 || r.stdout != "0\n" || r.stderr != "" {
			t.Errorf("exit status %d, %s warnings, stderr %q", r.code, strings.TrimSpace(r.stdout), r.stderr)
		}
		processes := map[string]bool{}
		for _, d := range r.dumps {
			processes[filepath.Dir(d)] = true
		}
		// A child that did nothing leaves no folder: of sixty, as good as none had its few bytes sampled, or lived for an interval.
		if len(processes) == 0 || len(processes) > 4 {
			t.Errorf("%d processes left dumps, want one: %v", len(processes), r.dumps)
		}
	})
}

func TestTheClockGoesOnAfterAFork(t *testing.T) {
	const program = `
import os, sys, time
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
folder = os.environ["HEAPWIRE_SPOOL"]
x = [bytearray(100000) for _ in range(100)]
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    if any("interval" in f for d, _, files in os.walk(folder) for f in files):
        print("dumped")
        break
    time.sleep(0.01)
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, []string{"HEAPWIRE_INTERVAL=100ms", "HEAPWIRE_SAMPLE_BYTES=64KiB"}, p.Path, "-c", program)
		if r.code != 0 || r.stdout != "dumped\n" {
			t.Errorf("exit status %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
		}
	})
}

// The exit dump is taken before the interpreter takes itself apart, and nothing comes after it.
func TestTheExitDumpShowsTheLiveHeap(t *testing.T) {
	const program = `
import time
keep = [bytearray(1 << 20) for _ in range(64)]
time.sleep(0.3)  # more than the interpreter needs to be up, and for the callback to be registered
for _ in range(1000): pass
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, []string{"HEAPWIRE_INTERVAL=100ms"}, p.Path, "-c", program)
		if len(r.dumps) == 0 || !strings.HasSuffix(r.dumps[len(r.dumps)-1], ".exit.heap") {
			t.Fatalf("dumps %v, want the last one to be that at exit; stderr %q", r.dumps, r.stderr)
		}
		text, err := os.ReadFile(filepath.Join(r.spool, r.dumps[len(r.dumps)-1]))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^allocated=(\d+)$`).FindSubmatch(text)
		if m == nil || len(m[1]) < 8 {
			t.Errorf("allocated=%s at exit, want at least 64 MiB", m[1])
		}
		if left, _ := filepath.Glob(filepath.Join(r.spool, "*", ".*")); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// The exit callback is registered at some bytecode of the program. Up to 3.11 importlib's locks do not bear an import in the
// middle of their bookkeeping: with the naive way 3 of 20 such programs failed on 3.8 with a KeyError.
func TestTheExitCallbackKeepsOutOfImportsLocks(t *testing.T) {
	const program = `
import _frozen_importlib, time
lock = _frozen_importlib._ModuleLock("x")
end = time.perf_counter() + 0.1
while time.perf_counter() < end:
    lock.acquire()
    lock.release()
`
	old := func(p pythons.Python) bool { return p.Supported() && p.Minor < 12 }
	eachPython(t, old, func(t *testing.T, p pythons.Python) {
		for i := range 25 {
			r := under(t, library, nil, p.Path, "-S", "-c", program)
			if r.code != 0 || r.stderr != "" {
				t.Fatalf("run %d: exit status %d, stderr %s", i, r.code, r.stderr)
			}
		}
	})
}

// ---------------------------------------------------------------- what sets off a dump

// meta gives a key of a dump's HEAPWIRE_META, "" if it is not there.
func (r result) meta(t *testing.T, dump, key string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.spool, dump))
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// reasons are those of the dumps, in order.
func (r result) reasons() []string {
	var out []string
	for _, d := range r.dumps {
		out = append(out, strings.Split(filepath.Base(d), ".")[1])
	}
	return out
}

// seen is what a Python program waits for: a dump of a reason in its spool.
const seen = `
import ctypes, glob, mmap, os, signal, sys, time
def seen(reason, n=1):
    end = time.monotonic() + 60
    while len(glob.glob(os.environ["HEAPWIRE_SPOOL"] + "/*/*." + reason + ".heap")) < n:
        assert time.monotonic() < end, "no dump of reason " + reason
        time.sleep(0.005)
`

func TestAGiantRequestIsDumpedAtOnceWithItsStack(t *testing.T) {
	const program = seen + `
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
def read_message(length):
    return malloc(length)
read_message(3 << 30)
seen("giant")
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off"}, p.Path, "-c", program)
		if r.code != 0 || !slices.Equal(r.reasons(), []string{"giant"}) {
			t.Fatalf("exit status %d, dumps %v, stderr %s", r.code, r.dumps, r.stderr)
		}
		text, err := os.ReadFile(filepath.Join(r.spool, r.dumps[0]))
		if err != nil {
			t.Fatal(err)
		}
		row := regexp.MustCompile(`(?m)^HEAPWIRE_GIANT: 1\n\d+\t\d+\t3221225472\tmalloc\t[^\t]+\t(0x[0-9a-f]+ ?)+$`).Find(text)
		id := regexp.MustCompile(`(?m)^(\d+)\tread_message\t<string>\t\d+$`).FindSubmatch(text)
		if row == nil || id == nil {
			t.Fatalf("no row of the request, or no function read_message:\n%s", text)
		}
		var token int
		fmt.Sscan(string(id[1]), &token)
		line := 12 // of return malloc(length)
		if want := fmt.Sprintf("0x%x", 0x5079<<48|token<<22|line); !bytes.Contains(row, []byte(want)) {
			t.Errorf("%s is not in %s", want, row)
		}
		if got := r.meta(t, r.dumps[0], "trigger"); got != "request of 3221225472" {
			t.Errorf("trigger=%s", got)
		}
		if rss := r.meta(t, r.dumps[0], "rss"); len(rss) > 9 || rss > "200000000" && len(rss) == 9 {
			t.Errorf("rss=%s: the pages were touched before the dump", rss)
		}
		r = under(t, library, []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_GIANT=0"}, p.Path, "-c",
			strings.ReplaceAll(program, `seen("giant")`, ""))
		if r.code != 0 || len(r.dumps) != 0 {
			t.Errorf("with HEAPWIRE_GIANT=0: exit status %d, dumps %v", r.code, r.dumps)
		}
	})
}

func TestASignalSetsOffADumpWhereItIsAskedFor(t *testing.T) {
	const program = seen + `
os.kill(os.getpid(), signal.SIGUSR2)
seen("signal")
os.kill(os.getpid(), signal.SIGUSR2)
seen("signal", 2)
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		env := []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_SIGNAL=USR2"}
		r := under(t, library, env, p.Path, "-c", program)
		if r.code != 0 || !slices.Equal(r.reasons(), []string{"signal", "signal"}) {
			t.Errorf("exit status %d, dumps %v, stderr %s", r.code, r.dumps, r.stderr)
		}
		if r = under(t, library, env[:2], p.Path, "-c", program); r.code != 128+int(syscall.SIGUSR2) {
			t.Errorf("without HEAPWIRE_SIGNAL the signal must end the program: %d", r.code)
		}
	})
}

func TestAProgramMayAskForADump(t *testing.T) {
	const program = seen + `
assert ctypes.CDLL(None).heapwire_dump() == 0
assert len(glob.glob(os.environ["HEAPWIRE_SPOOL"] + "/*/*.api.heap")) == 1
pid = os.fork()
if pid == 0:
    os._exit(ctypes.CDLL(None).heapwire_dump())
assert os.waitpid(pid, 0)[1] == 0
assert len(glob.glob(os.environ["HEAPWIRE_SPOOL"] + "/*/*.api.heap")) == 2
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		r := under(t, library, []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off"}, p.Path, "-c", program)
		if r.code != 0 || len(r.dumps) != 2 {
			t.Errorf("exit status %d, dumps %v, stderr %s", r.code, r.dumps, r.stderr)
		}
	})
}

func TestThePythonPackageAsksForADump(t *testing.T) {
	const program = `
import heapwire, os
print(heapwire.dump(), len(os.listdir(os.environ["HEAPWIRE_SPOOL"])) if os.path.isdir(os.environ["HEAPWIRE_SPOOL"]) else 0)
`
	path := "PYTHONPATH=../python"
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		for lib, want := range map[string]string{library: "True 1\n", "": "False 0\n"} {
			r := under(t, lib, []string{path, "HEAPWIRE_EXIT_DUMP=off"}, p.Path, "-c", program)
			if r.code != 0 || r.stdout != want {
				t.Errorf("library %q: exit status %d, stdout %q, stderr %s", lib, r.code, r.stdout, r.stderr)
			}
		}
		r := under(t, library, []string{path, "HEAPWIRE_TARGET=none"}, p.Path, "-c", program)
		if r.stdout != "False 0\n" {
			t.Errorf("not profiled: stdout %q, stderr %s", r.stdout, r.stderr)
		}
		r = under(t, library, []string{path, "HEAPWIRE_EXIT_DUMP=off"}, "sh", "-c", "ulimit -f 1; exec "+p.Path+` -c 'import heapwire; heapwire.dump()'`)
		if !strings.Contains(r.stderr, "OSError: [Errno 27] File too large: 'heapwire dump'") {
			t.Errorf("a dump that cannot be written: stderr %s", r.stderr)
		}
	})
}

func TestAJumpOfResidentMemorySetsOffADump(t *testing.T) {
	const program = seen + `
time.sleep(2.5)  # two looks of the clock: the second knows what to compare with
big = mmap.mmap(-1, 200 << 20)
big.write(b"x" * len(big))
seen("jump")
`
	all, err := pythons.Find()
	if err != nil || len(all) == 0 {
		t.Fatal(err)
	}
	p := all[len(all)-1]
	t.Parallel()
	r := under(t, library, []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off"}, p.Path, "-c", program)
	if r.code != 0 || !slices.Equal(r.reasons(), []string{"jump"}) || !strings.HasPrefix(r.meta(t, r.dumps[0], "trigger"), "resident memory up by ") {
		t.Errorf("exit status %d, dumps %v, stderr %s", r.code, r.dumps, r.stderr)
	}
}

// group makes a control group of 256 MiB below the test's own, v2 or v1, and gives what a shell runs to enter it.
func group(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || fields[1] != "" && fields[1] != "memory" {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if fields[1] == "memory" {
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		dir := filepath.Join(root, fields[2], fmt.Sprintf("heapwire-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o700); err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(dir) })
		if err := os.WriteFile(filepath.Join(dir, file), []byte("268435456"), 0o600); err != nil {
			continue
		}
		return "echo $$ > " + dir + "/cgroup.procs && exec "
	}
	t.Skip("no memory control group can be made here")
	return ""
}

func TestMemoryPressureSetsOffADumpALevel(t *testing.T) {
	enter := group(t)
	const program = seen + `
keep = [bytearray(b"x") * (215 << 20)]
seen("pressure")
keep.append(bytearray(b"x") * (20 << 20))
seen("pressure", 2)
`
	all, err := pythons.Find()
	if err != nil || len(all) == 0 {
		t.Fatal(err)
	}
	p := all[len(all)-1]
	file := filepath.Join(t.TempDir(), "program.py")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_JUMP=off", "HEAPWIRE_GAP=100ms"}
	r := under(t, library, env, "sh", "-c", enter+p.Path+" "+file)
	if r.code != 0 || !slices.Equal(r.reasons(), []string{"pressure", "pressure"}) {
		t.Fatalf("exit status %d, dumps %v, stderr %s", r.code, r.dumps, r.stderr)
	}
	for i, want := range []string{"cgroup 8", "cgroup 9"} {
		if got := r.meta(t, r.dumps[i], "trigger"); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "% of 268435456") {
			t.Errorf("trigger=%s, want %s…", got, want)
		}
	}
}

// A program that does nothing makes one dump in ten, and one that goes on allocating makes all.
func TestIntervalDumpsBackOffWhileNothingChanges(t *testing.T) {
	const program = seen + `
import threading
already = len(glob.glob(os.environ["HEAPWIRE_SPOOL"] + "/*/*.interval.heap"))
seen("interval", already + 3)  # the first may be under way, the second say what came since
assert ctypes.CDLL(None).heapwire_dump() == 0
`
	all, err := pythons.Find()
	if err != nil || len(all) == 0 {
		t.Fatal(err)
	}
	p := all[len(all)-1]
	t.Parallel()
	r := under(t, library, []string{"HEAPWIRE_INTERVAL=100ms", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_SAMPLE_BYTES=1GiB"}, p.Path, "-c", program)
	if r.code != 0 || len(r.dumps) < 3 {
		t.Fatalf("exit status %d, dumps %v, stderr %s", r.code, r.dumps, r.stderr)
	}
	// What passed between the last two, and that the last says so: the interpreter's start, which changes much, may lie before them.
	var ns int64
	fmt.Sscan(r.meta(t, r.dumps[len(r.dumps)-2], "interval_ns"), &ns)
	if ns < 400e6 {
		t.Errorf("%v between two dumps of a program that does nothing, want about ten intervals of 100ms", time.Duration(ns))
	}
}

func TestBadSettingsAreSaidOnceAndTheJobRuns(t *testing.T) {
	program := compileC(t, "programs/ways_out.c")
	r := under(t, library, []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_INTERVAL=soon", "HEAPWIRE_SAMPLE_BYTES=0"}, program, "exit")
	if r.code != 5 || strings.Count(r.stderr, "\n") != 2 || !strings.Contains(r.stderr, "HEAPWIRE_INTERVAL=soon") {
		t.Errorf("exit status %d, stderr %q", r.code, r.stderr)
	}
	for conf, want := range map[string]string{"prof:false": "MALLOC_CONF turns profiling off", "prof_accum:true": ""} {
		r = under(t, library, []string{"HEAPWIRE_TARGET=all", "MALLOC_CONF=" + conf}, program, "exit")
		if r.code != 5 || !strings.Contains(r.stderr, want) || want == "" && r.stderr != "" {
			t.Errorf("MALLOC_CONF=%s: exit status %d, stderr %q", conf, r.code, r.stderr)
		}
	}
}

// jemalloc holds locks while it writes a dump, which fork and sampling threads wait for.
func TestADiskThatHangsHoldsUpNobody(t *testing.T) {
	program := compileC(t, "programs/hung_disk.c", "-rdynamic")
	env := []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_SAMPLE_BYTES=1KiB"}
	r := under(t, library, env, "timeout", "-s", "KILL", "60", program)
	if r.code != 0 || r.stdout != "the dump stands still\nforked, 7; allocated\nthe dump came: 0\n" || len(r.dumps) != 1 {
		t.Errorf("exit status %d, dumps %v\n%s%s", r.code, r.dumps, r.stdout, r.stderr)
	}
}

// From 3.12 on a fork ends the clock for a moment (TestForkGivesNoWarningForOurThread): one that stands in a write goes on. Here it waits
// for the reader of a pipe that is in the place of its file.
func TestAForkDoesNotWaitForTheDisk(t *testing.T) {
	const program = `
import ctypes, glob, os, time, warnings
warnings.simplefilter("ignore")
assert ctypes.CDLL(None).heapwire_dump() == 0
newest = max(glob.glob(os.environ["HEAPWIRE_SPOOL"] + "/*/*.heap"))
number = int(os.path.basename(newest).split(".")[0])
for n in range(number + 1, number + 50):
    os.mkfifo("%s/.%06d.tmp" % (os.path.dirname(newest), n))
clock = next(t for t in os.listdir("/proc/self/task") if open("/proc/self/task/%s/comm" % t).read() == "heapwire\n")
kept, deadline, before, same = [], time.monotonic() + 50, "", 0
while same < 5: # in one and the same open
    kept.append(bytearray(100000))
    now = open("/proc/self/task/%s/syscall" % clock).read()
    same = same + 1 if now == before and now.split()[0] in ("2", "257") else 0
    before = now
    time.sleep(0.01)
    assert time.monotonic() < deadline
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitpid(pid, 0)[1] >> 8, flush=True)
os._exit(0)
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		env := []string{"HEAPWIRE_INTERVAL=100ms", "HEAPWIRE_SAMPLE_BYTES=64KiB", "HEAPWIRE_EXIT_DUMP=off"}
		r := under(t, library, env, "timeout", "-s", "KILL", "60", p.Path, "-c", program)
		if r.code != 0 || r.stdout != "7\n" {
			t.Errorf("exit status %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	})
}

// After jemalloc's part of the last dump the clock asks jemalloc for nothing more: the leaving thread, or another, may have its locks.
func TestALastDumpEndsThoughEveryLockIsTaken(t *testing.T) {
	program := compileC(t, "programs/locked_exit.c", "-rdynamic", "-ldl")
	for _, interval := range []string{"0", "1h"} {
		r := under(t, library, []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_INTERVAL=" + interval, "HEAPWIRE_SAMPLE_BYTES=64KiB"}, program)
		if r.code != 0 || len(r.dumps) != 1 || r.stderr != "" {
			t.Errorf("interval %s: exit status %d, dumps %v, stderr %s", interval, r.code, r.dumps, r.stderr)
		}
	}
}

// A disk that is slow does not make dumps rare: what a dump costs is its processor time. One that costs much of it comes rarely, and
// in a program that does nothing not ten times as rarely: what passes without a dump is time, and not turns of the clock.
func TestDumpsComeThoughEachTakesItsTime(t *testing.T) {
	program := compileC(t, "programs/hung_disk.c", "-rdynamic")
	for _, disk := range []string{"slow", "busy"} {
		t.Run(disk, func(t *testing.T) {
			t.Parallel()
			env := []string{"HEAPWIRE_TARGET=all", "HEAPWIRE_INTERVAL=100ms", "HEAPWIRE_EXIT_DUMP=off", "HEAPWIRE_SAMPLE_BYTES=1KiB", "HEAPWIRE_JUMP=off", "HEAPWIRE_PRESSURE=off", "HEAPWIRE_PSI=0"}
			r := under(t, library, env, "timeout", "-s", "KILL", "60", program, disk)
			if r.code != 0 || r.stdout != "four dumps\n" {
				t.Errorf("exit status %d, dumps %v in a minute\n%s%s", r.code, r.dumps, r.stdout, r.stderr)
			}
		})
	}
}

// jemalloc is asked for a dump only into a file that is there, and the clock thread has SIGXFSZ blocked.
func TestAFileSizeLimitCostsTheDumpAndNotTheJob(t *testing.T) {
	program := compileC(t, "programs/ways_out.c")
	r := under(t, library, []string{"HEAPWIRE_TARGET=all"}, "sh", "-c", "ulimit -f 1; exec "+program+" exit")
	if r.code != 5 || len(r.dumps) != 0 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "File too large") {
		t.Errorf("exit status %d, dumps %v, stderr %q", r.code, r.dumps, r.stderr)
	}
	if left, _ := filepath.Glob(filepath.Join(r.spool, "*", ".0*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

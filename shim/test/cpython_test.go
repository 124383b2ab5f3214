// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"maps"
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

// full tells whether the long forms were asked for, as `make test-matrix` does.
var full = os.Getenv("HEAPWIRE_MATRIX") != ""

// Of CPython's own tests those about frames, threads, gc, fork, exit, signals and sub-interpreters. Not every version has all.
var (
	briefModules = []string{"test_generators", "test_frame", "test_fork1"}
	allModules   = []string{
		"test_generators", "test_coroutines", "test_asyncgen", "test_frame", "test_code", "test_sys_settrace", "test_sys_setprofile",
		"test_fork1", "test_weakref", "test_atexit", "test_gc", "test_thread", "test_threading", "test_threadsignals",
		"test_signal", "test_sys", "test_exceptions", "test_descr", "test_subprocess",
		"test__xxsubinterpreters", "test_interpreters", "test_faulthandler", "test_multiprocessing_main_handling",
		"test_capi", "test_embed", "test_tracemalloc", "test_unicode", "test_bytes", "test_dict",
	}
)

// Tests that are left out, since they hold what the shim does for what the interpreter does: with another allocator of objects in front
// of pymalloc, the shim's or tracemalloc's, sys._debugmallocstats leaves pymalloc out (python/cpython, Objects/obmalloc.c,
// _PyMem_PymallocEnabled); and one counts a program's allocations until one fails, of which the callback for the exit makes some.
var leftOut = []string{"--ignore", "test_debugmallocstats", "--ignore", "test_set_nomemory"}

// A verdict is what a module's run says: its own words, and the tests that did not pass.
type verdict struct {
	code   int
	failed []string
	output string
}

var badTest = regexp.MustCompile(`(?m)^(?:FAIL|ERROR): (.+)$`)

// ownTest runs one module of CPython's tests.
func ownTest(t *testing.T, p pythons.Python, module string, env ...string) verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	// Signals as at a terminal, even if this test was started in the background, where SIGINT is ignored.
	args := append([]string{"--default-signal", p.Path, "-m", "test", "--timeout", "300"}, leftOut...)
	cmd := exec.CommandContext(ctx, "env", append(args, module)...)
	cmd.Dir = t.TempDir()
	cmd.Env = pythons.CleanEnv(env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	v := verdict{output: string(out)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		v.code, v.failed = -1, []string{"the module did not end"}
	case errors.As(err, &exit):
		v.code = exit.ExitCode()
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range badTest.FindAllStringSubmatch(v.output, -1) {
		names[m[1]] = true
	}
	if v.code != 0 {
		v.failed = append(v.failed, slices.Sorted(maps.Keys(names))...)
	}
	return v
}

func hasModule(p pythons.Python, module string) bool {
	cmd := exec.Command(p.Path, "-c", "import sys, importlib.util as u; sys.exit(u.find_spec('test.'+sys.argv[1]) is None)", module)
	cmd.Env = pythons.CleanEnv()
	return cmd.Run() == nil
}

// About every 512th byte is sampled, of small objects too: those come from malloc in one run, from pymalloc in another. A module that fails with the shim is run again
// with and without it: what fails only with the shim, both times, is the shim's.
func TestCPythonsOwnTestsPass(t *testing.T) {
	modules := briefModules
	if full {
		modules = allModules
	}
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for i := len(all) - 1; i >= 0 && (full || tried == 0); i-- {
		p := all[i]
		if !p.Supported() || !hasModule(p, "test_frame") {
			continue
		}
		tried++
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			for _, module := range modules {
				if hasModule(p, module) {
					t.Run(module, func(t *testing.T) { passesAsWithout(t, p, module, "PYTHONMALLOC=malloc") })
					t.Run(module+" on pymalloc", func(t *testing.T) { passesAsWithout(t, p, module, "HEAPWIRE_PYTHON_OBJECTS=sampled") })
				}
			}
		})
	}
	if tried == 0 {
		t.Skip("no supported interpreter with its own tests on this machine")
	}
}

func passesAsWithout(t *testing.T, p pythons.Python, module, env string) {
	shim := func() verdict {
		return ownTest(t, p, module, env, "LD_PRELOAD="+library, "HEAPWIRE_SPOOL="+filepath.Join(t.TempDir(), "spool"), "HEAPWIRE_SAMPLE_BYTES=512")
	}
	with := shim()
	if with.code == 0 {
		return
	}
	without, again := ownTest(t, p, module, env), shim()
	var ours []string
	for _, name := range with.failed {
		if slices.Contains(again.failed, name) && !slices.Contains(without.failed, name) {
			ours = append(ours, name)
		}
	}
	switch {
	case len(ours) > 0, again.code != 0 && again.code != without.code:
		t.Errorf("passes without the shim, and not with it: %s (status %d, without %d)\n%s", strings.Join(ours, ", "), again.code, without.code,
			tail(again.output))
	case again.code == 0:
		t.Logf("failed in one of two runs: %s", strings.Join(with.failed, ", "))
	default:
		t.Logf("fails without the shim too: %s", strings.Join(without.failed, ", "))
	}
}

func tail(text string) string {
	const most = 4000
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

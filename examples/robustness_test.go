// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

// shimLines are the lines of stderr that come from heapwire, not from the job.
func shimLines(stderr string) []string {
	var lines []string
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "heapwire") || strings.HasPrefix(line, "libheapwire") {
			lines = append(lines, line)
		}
	}
	return lines
}

// checkBrief demands that cases/brief.py ended as it does by itself.
func checkBrief(t *testing.T, j *job, code int) {
	t.Helper()
	if code != 7 {
		t.Errorf("exit status %d, want the job's 7\n%s", code, j.report())
	}
	if got := j.stdout.String(); got != "output of the job\n" {
		t.Errorf("stdout %q is not the job's", got)
	}
	if !strings.Contains(j.stderr.String(), "a word of the job on stderr\n") {
		t.Errorf("the job's own words on stderr are missing:\n%s", j.stderr.String())
	}
}

func TestAJobWhoseSpoolCannotBeMadeGoesOn(t *testing.T) {
	t.Parallel()
	py := onePython(t)
	// A path below a file cannot be made by root either.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j := startPreloaded(t, filepath.Join(file, "spool"), []string{"HEAPWIRE_INTERVAL=100ms"},
		py.Path, filepath.Join(here, "cases/brief.py"))
	checkBrief(t, j, j.wait())
	if lines := shimLines(j.stderr.String()); len(lines) != 1 {
		t.Errorf("%d messages of the shim, want one:\n%s", len(lines), j.stderr.String())
	}
}

func TestAFullSpoolCostsDumpsThatAreCounted(t *testing.T) {
	t.Parallel()
	py := onePython(t)
	spool := filepath.Join(t.TempDir(), "spool")
	j := startPreloaded(t, spool, []string{"HEAPWIRE_INTERVAL=100ms"}, py.Path, filepath.Join(here, "cases/full_spool.py"))
	j.until("the shim says that a dump failed", func() (bool, error) {
		return len(shimLines(j.stderr.String())) > 0, nil
	})
	if _, err := io.WriteString(j.stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	failed := regexp.MustCompile(`(?m)^dumps_failed=([0-9]+)$`)
	count := 0
	j.until("a dump says how many failed before it", func() (bool, error) {
		dumps, err := filepath.Glob(filepath.Join(spool, "*", "*.heap"))
		if err != nil {
			return false, err
		}
		for _, dump := range dumps {
			text, err := os.ReadFile(dump)
			if err != nil {
				return false, err
			}
			if m := failed.FindSubmatch(text); m != nil {
				if n, _ := strconv.Atoi(string(m[1])); n > count {
					count = n
				}
			}
		}
		return count > 0, nil
	})
	if code := j.wait(); code != 7 {
		t.Errorf("exit status %d, want the job's 7", code)
	}
	if got := j.stdout.String(); got != "limited\ndone\n" {
		t.Errorf("stdout %q is not the job's", got)
	}
	if lines := shimLines(j.stderr.String()); len(lines) != 1 {
		t.Errorf("%d messages of the shim, want one:\n%s", len(lines), j.stderr.String())
	}
	leftovers, err := filepath.Glob(filepath.Join(spool, "*", ".*"))
	if err != nil || len(leftovers) > 0 {
		t.Errorf("left in the spool: %v (%v)", leftovers, err)
	}
	t.Logf("%d dumps lost and counted", count)
}

func TestAnEndpointThatDoesNotWorkLeavesTheJobAlone(t *testing.T) {
	py := onePython(t)
	const nobody = "http://127.0.0.1:1" // a port that no program is given
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(release); silent.Close() })
	var refused atomic.Int64
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		refused.Add(1)
		http.Error(w, "no such thing", http.StatusNotFound)
	}))
	t.Cleanup(refusing.Close)

	for name, endpoint := range map[string]string{"down": nobody, "slow": silent.URL, "wrong": refusing.URL} {
		for sink, env := range map[string][]string{
			"otlp":      {"OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint},
			"pyroscope": {"PYROSCOPE_SERVER_ADDRESS=" + endpoint},
		} {
			t.Run(name+"/"+sink, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				// What is not delivered is left in a spool under TMPDIR.
				env := append(env, "OTEL_EXPORTER_OTLP_TIMEOUT=1000", "TMPDIR="+t.TempDir())
				j := startRun(t, env, []string{"--drain-timeout", "3s"}, py.Path, filepath.Join(here, "cases/brief.py"))
				checkBrief(t, j, j.wait())
				t.Logf("%v; %d lines on stderr", time.Since(began).Round(time.Millisecond), strings.Count(j.stderr.String(), "\n"))
				// The file sink is not held up by the other one.
				if paths, err := j.profilePaths(0); err != nil || len(paths) == 0 {
					t.Errorf("no profile on disk: %v\n%s", err, j.report())
				}
				// A sink says that it fails, and at the end what it gave up; OTLP has one for profiles and one for metrics.
				most := map[string]int{"otlp": 4, "pyroscope": 2}[sink]
				if n := strings.Count(j.stderr.String(), strings.TrimPrefix(endpoint, "http://")); n > most {
					t.Errorf("the endpoint is complained of %d times:\n%s", n, j.stderr.String())
				}
			})
		}
	}
}

func TestTheExitStatusOfAKilledJobIsPassedOnAndItsLastDumpDelivered(t *testing.T) {
	t.Parallel()
	py := onePython(t)
	program := filepath.Join(here, "leak_basic/leak_basic.py")
	told := filepath.Join(t.TempDir(), "truth")
	j := startRun(t, nil, []string{"--interval", "200ms"}, py.Path, program,
		"--rounds", "5", "--blocks", "64", "--pause", "0", "--hold", "--truth", told)
	j.truth = told
	one := j.truths()[0]
	j.profileAfter(one.PID, one.Time)
	if err := syscall.Kill(one.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := j.wait(); code != 128+int(syscall.SIGKILL) {
		t.Errorf("exit status %d, want 128+9\n%s", code, j.report())
	}
	paths, err := j.profilePaths(one.PID)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no profile: %v", err)
	}
	p, err := readProfile(paths[len(paths)-1])
	if err != nil {
		t.Fatal(err)
	}
	checkSites(t, py, p, program, one)
}

// Programs that inherit LD_PRELOAD without being a target: same output, no word on stderr, nothing written.
func TestProgramsWithoutAnInterpreterAreLeftAlone(t *testing.T) {
	source := filepath.Join(t.TempDir(), "a.c")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string][]string{
		"shell":    {"bash", "-c", "x=$(echo one); echo $x; (exit 3); echo $?"},
		"git":      {"git", "--version"},
		"compiler": {"gcc", "-S", "-o", "-", source},
		"sort":     {"sort", source},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Skipf("no %s on this machine", command[0])
			}
			plain := exec.Command(command[0], command[1:]...)
			plain.Env = pythons.CleanEnv()
			want, err := plain.Output()
			if err != nil {
				t.Fatal(err)
			}
			spool := filepath.Join(t.TempDir(), "spool")
			j := startPreloaded(t, spool, []string{"HEAPWIRE_INTERVAL=100ms"}, command...)
			j.succeed()
			if got := j.stdout.String(); got != string(want) {
				t.Errorf("stdout %q, without the shim %q", got, want)
			}
			if got := j.stderr.String(); got != "" {
				t.Errorf("stderr %q", got)
			}
			if _, err := os.Stat(spool); !os.IsNotExist(err) {
				t.Errorf("the spool was made (%v): %v", err, spoolPIDs(t, spool))
			}
		})
	}
}

func TestEveryProgramIsATargetWhenAsked(t *testing.T) {
	t.Parallel()
	spool := filepath.Join(t.TempDir(), "spool")
	j := startPreloaded(t, spool, []string{"HEAPWIRE_TARGET=all"}, "bash", "-c", "printf -v x %0999999d 0; echo $$")
	j.succeed()
	pid, err := strconv.Atoi(strings.TrimSpace(j.stdout.String()))
	if err != nil {
		t.Fatal(err)
	}
	folder, ok := spoolPIDs(t, spool)[pid]
	if !ok {
		t.Fatalf("no folder of process %d in the spool: %v\n%s", pid, spoolPIDs(t, spool), j.report())
	}
	dumps, err := filepath.Glob(filepath.Join(folder, "*.exit.heap"))
	if err != nil || len(dumps) != 1 {
		t.Fatalf("dumps %v (%v), want one of the exit", dumps, err)
	}
	text, err := os.ReadFile(dumps[0])
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(text, []byte("heap_v2/")) || !bytes.Contains(text, []byte("HEAPWIRE_META: 1\n")) {
		t.Errorf("%s is no dump: %.80q", dumps[0], text)
	}
}

// What is in the environment already stays: the user's own preload and jemalloc options.
func TestTheUsersOwnPreloadAndOptionsStay(t *testing.T) {
	t.Parallel()
	py := onePython(t)
	script := "import os; print(os.environ['LD_PRELOAD'].replace(':', ' ').split()[-1], os.environ['MALLOC_CONF'])"
	other := loadedLibrary(t, py)
	j := startRun(t, []string{"LD_PRELOAD=" + other, "MALLOC_CONF=narenas:2"}, nil, py.Path, "-c", script)
	j.succeed()
	if got, want := j.stdout.String(), fmt.Sprintf("%s narenas:2\n", other); got != want {
		t.Errorf("stdout %q, want %q\n%s", got, want, j.report())
	}
}

// loadedLibrary is any shared object that the interpreter has loaded.
func loadedLibrary(t *testing.T, py python) string {
	t.Helper()
	cmd := exec.Command(py.Path, "-c", "print(next(l.split()[-1] for l in open('/proc/self/maps') if 'libm.so' in l or 'libc.so' in l or 'libm-' in l or 'libc-' in l))")
	cmd.Env = pythons.CleanEnv()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("finding a library: %v", err)
	}
	return strings.TrimSpace(string(out))
}

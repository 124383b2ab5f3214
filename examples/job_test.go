// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/internal/syncbuffer"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

// Watchdog of one job; a job takes a few seconds.
const jobLimit = 90 * time.Second

// A mean of 16 KiB between samples makes the estimate of 640 blocks of 28 KiB or more exact to 2 % (one sigma: the square
// root of (1-p)/(p*blocks) with p = 1-exp(-size/interval)), so that 15 % are never left by chance.
const sampleBytes = "HEAPWIRE_SAMPLE_BYTES=16384"

// A job is a program running under the shim.
type job struct {
	t              *testing.T
	cmd            *exec.Cmd
	cancel         context.CancelFunc
	out            string // --out of heapwire run
	truth          string
	stdin          io.WriteCloser
	stdout, stderr syncbuffer.Buffer
}

// startRun starts a command under heapwire run with files as its only sink, unless the environment names others.
func startRun(t *testing.T, env, flags []string, command ...string) *job {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	args := append([]string{"run", "--out", out}, flags...)
	j := start(t, env, heapwire, append(append(args, "--"), command...)...)
	j.out = out
	return j
}

// startPreloaded starts a command with the shim and nothing else; its dumps stay in the spool.
func startPreloaded(t *testing.T, spool string, env []string, command ...string) *job {
	t.Helper()
	env = append([]string{"LD_PRELOAD=" + shim, "HEAPWIRE_SPOOL=" + spool}, env...)
	return start(t, env, command[0], command[1:]...)
}

func start(t *testing.T, env []string, name string, args ...string) *job {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), jobLimit)
	j := &job{t: t, cancel: cancel}
	j.cmd = exec.CommandContext(ctx, name, args...)
	j.cmd.Env = pythons.CleanEnv(append([]string{sampleBytes}, env...)...)
	j.cmd.Stdout, j.cmd.Stderr = &j.stdout, &j.stderr
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	j.cmd.Cancel = func() error { return syscall.Kill(-j.cmd.Process.Pid, syscall.SIGKILL) }
	j.cmd.WaitDelay = 5 * time.Second
	var err error
	if j.stdin, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if j.cmd.ProcessState == nil {
			_ = j.cmd.Wait()
		}
	})
	return j
}

// wait ends the job's input and returns its exit status.
func (j *job) wait() int {
	j.t.Helper()
	_ = j.stdin.Close()
	err := j.cmd.Wait()
	j.cancel()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		j.t.Fatalf("%v\n%s", err, j.report())
	}
	if status := j.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		j.t.Fatalf("killed by %v (the watchdog kills after %v)\n%s", status.Signal(), jobLimit, j.report())
	}
	return j.cmd.ProcessState.ExitCode()
}

// succeed waits and demands the exit status 0.
func (j *job) succeed() {
	j.t.Helper()
	if code := j.wait(); code != 0 {
		j.t.Fatalf("exit status %d\n%s", code, j.report())
	}
}

func (j *job) report() string {
	return fmt.Sprintf("%v\nstdout:\n%s\nstderr:\n%s", j.cmd.Args, &j.stdout, &j.stderr)
}

// until polls for something other processes do, and fails when the job's watchdog would strike.
func (j *job) until(what string, done func() (bool, error)) {
	j.t.Helper()
	deadline := time.Now().Add(jobLimit)
	for tick := time.NewTicker(25 * time.Millisecond); ; <-tick.C {
		ok, err := done()
		if ok {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) || j.cmd.Process.Signal(syscall.Signal(0)) != nil {
			j.t.Fatalf("waiting until %s (%v)\n%s", what, err, j.report())
		}
	}
}

// truths waits until every process of the job has told what it holds.
func (j *job) truths() []truth {
	j.t.Helper()
	var all []truth
	j.until("the truth is told", func() (bool, error) {
		var done bool
		var err error
		all, done, err = readTruths(j.truth)
		return done, err
	})
	return all
}

// profileAfter waits for a profile of the process that was begun after the given moment.
func (j *job) profileAfter(pid int, moment int64) *profile.Profile {
	j.t.Helper()
	var found *profile.Profile
	j.until(fmt.Sprintf("there is a profile of process %d", pid), func() (bool, error) {
		paths, err := j.profilePaths(pid)
		for _, path := range paths {
			p, readErr := readProfile(path)
			if readErr != nil {
				err = readErr
				continue
			}
			if p.TimeNanos > moment {
				found = p
				return true, nil
			}
		}
		return false, err
	})
	return found
}

// profilePaths lists a process's profiles under the output folder in the order they were taken. Process 0 means any.
func (j *job) profilePaths(pid int) ([]string, error) {
	who := "*"
	if pid != 0 {
		who = strconv.Itoa(pid)
	}
	return filepath.Glob(filepath.Join(j.out, "*-"+who+"-*", "*.pb.gz"))
}

func readProfile(path string) (*profile.Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// spoolPIDs returns the processes that have a folder in the spool.
func spoolPIDs(t *testing.T, spool string) map[int]string {
	t.Helper()
	entries, err := os.ReadDir(spool)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	pids := map[int]string{}
	for _, e := range entries {
		pid, err := pidOf(e.Name())
		if err != nil {
			t.Errorf("in the spool: %v", err)
			continue
		}
		pids[pid] = filepath.Join(spool, e.Name())
	}
	return pids
}

// pidOf reads the process out of the name of its folder, <host>-<pid>-<start>.
func pidOf(folder string) (int, error) {
	fields := strings.Split(folder, "-")
	if len(fields) != 3 {
		return 0, fmt.Errorf("folder %q: want <host>-<pid>-<start>", folder)
	}
	pid, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0, fmt.Errorf("folder %q: %w", folder, err)
	}
	return pid, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

const (
	jobLimit = 3 * time.Minute // watchdog of one process
	interval = 200 * time.Millisecond
)

// soaking makes the long form of a test: make soak.
func soaking() bool { return os.Getenv("HEAPWIRE_SOAK") != "" }

// built is a file of bin.
func built(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skipf("not built: %v", err)
	}
	return path
}

func supported(t *testing.T) []pythons.Python {
	t.Helper()
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	var out []pythons.Python
	for _, p := range all {
		if p.Supported() {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		t.Skip("no supported Python on this machine")
	}
	return out
}

// receiver calls arrived, if not nil, at each arrival.
func receiver(t *testing.T, arrived func()) *otlptest.Receiver {
	t.Helper()
	r, err := otlptest.Start(context.Background(), otlptest.Options{Consume: func(context.Context, pprofile.Profiles) error {
		if arrived != nil {
			arrived()
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// environment puts the shim into a process that exports to endpoint, "" for nowhere.
func environment(t *testing.T, spool, endpoint string, more ...string) []string {
	t.Helper()
	library(t)
	env := pythons.CleanEnv("LD_PRELOAD="+built(t, "libheapwire.so"), "HEAPWIRE_SPOOL="+spool, "HEAPWIRE_SAMPLE_BYTES=64KiB",
		"HEAPWIRE_INTERVAL="+interval.String(), "HEAPWIRE_JUMP=off", "OTEL_SERVICE_NAME=job")
	if endpoint != "" {
		env = append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint)
	}
	return append(env, more...)
}

type ended struct {
	stdout, stderr string
	status         int // 128 + n for signal n
}

// job runs a command to its end. Its streams are files: a child that outlives it holds no pipe of ours.
func job(t *testing.T, env []string, command ...string) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), jobLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = env
	var files [2]*os.File
	for i := range files {
		f, err := os.Create(filepath.Join(t.TempDir(), "stream"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	err := cmd.Run()
	var texts [2]string
	for i, f := range files {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	e := ended{stdout: texts[0], stderr: texts[1]}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("%v: still running after %v\n%s%s", command, jobLimit, e.stdout, e.stderr)
	case errors.As(err, &exit):
		e.status = status(exit.ProcessState)
	case err != nil:
		t.Fatalf("%v: %v", command, err)
	}
	return e
}

func status(p *os.ProcessState) int {
	if s := p.Sys().(syscall.WaitStatus); s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.ExitCode()
}

// arrival is what a receiver got of one process.
type arrival struct {
	ids     map[string]bool
	repeats int
	last    string    // reason of the newest
	at      time.Time // of the newest
	newest  pprofile.Profiles
}

func arrivals(t *testing.T, received []pprofile.Profiles) map[int]*arrival {
	t.Helper()
	out := map[int]*arrival{}
	for _, pd := range received {
		text := func(i int32) string { return pd.Dictionary().StringTable().At(int(i)) }
		for _, rp := range pd.ResourceProfiles().All() {
			pid, ok := rp.Resource().Attributes().Get("process.pid")
			if !ok {
				t.Fatal("a profile without process.pid")
			}
			a := out[int(pid.Int())]
			if a == nil {
				a = &arrival{ids: map[string]bool{}}
				out[int(pid.Int())] = a
			}
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					id := p.ProfileID()
					if p.SampleType().TypeStrindex() != sp.Profiles().At(0).SampleType().TypeStrindex() {
						continue // the other sample type of the same dump
					}
					if a.ids[id.String()] {
						a.repeats++
					}
					a.ids[id.String()] = true
					if at := p.Time().AsTime(); at.After(a.at) {
						a.at, a.newest = at, pd
						for _, index := range p.AttributeIndices().All() {
							kv := pd.Dictionary().AttributeTable().At(int(index))
							if text(kv.KeyStrindex()) == "reason" {
								a.last = kv.Value().Str()
							}
						}
					}
				}
			}
		}
	}
	return out
}

// drained delivers what lies in the spool by the next process that exports.
func drained(t *testing.T, p pythons.Python, spool, endpoint string) {
	t.Helper()
	if e := job(t, environment(t, spool, endpoint), p.Path, "testdata/drain.py", spool); e.status != 0 {
		t.Fatalf("the next process: status %d\n%s", e.status, e.stderr)
	}
}

// Signals, tracebacks, fork pools, the interpreter's end: nothing of it is otherwise with the exporter in the process, and
// every process's last dump arrives, by itself or by the next process that exports.
func TestTheProgramGivesTheSameAnswers(t *testing.T) {
	rounds := "3"
	if soaking() {
		rounds = "50"
	}
	for _, p := range supported(t) {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			r := receiver(t, nil)
			alone := job(t, environment(t, t.TempDir(), r.HTTP, "HEAPWIRE_EXPORT=off"), p.Path, "testdata/answers.py", "alone", rounds)
			spool := t.TempDir()
			with := job(t, environment(t, spool, r.HTTP), p.Path, "testdata/answers.py", "exporter", rounds)
			if with.stdout != alone.stdout || with.status != alone.status || alone.status != 7 {
				t.Errorf("status %d, without the exporter %d\n%s%s\n%s", with.status, alone.status, with.stdout, alone.stdout, with.stderr)
			}
			if !strings.Contains(with.stdout, `"may interrupt us": []`) {
				t.Error(with.stdout)
			}
			if strings.Contains(with.stderr, "heapwire[") {
				t.Error(with.stderr)
			}
			drained(t, p, spool, r.HTTP)
			got := arrivals(t, r.Received())
			pids := 0
			for line := range strings.Lines(with.stderr) {
				text, ok := strings.CutPrefix(line, "pid ")
				if !ok {
					continue
				}
				pid, err := strconv.Atoi(strings.TrimSpace(text))
				if err != nil {
					t.Fatal(err)
				}
				pids++
				if a := got[pid]; a == nil || a.last != "exit" || a.repeats > 0 {
					t.Errorf("of process %d arrived %+v", pid, a)
				}
			}
			if pids == 0 {
				t.Error(with.stderr)
			}
		})
	}
}

// An endpoint that takes the connection and never says a word holds up neither dumps nor the program nor its end.
func TestAnEndpointThatHangsHoldsNothingUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan net.Conn, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			asked <- c
		}
	}()
	p := supported(t)[0]
	spool := t.TempDir()
	// Dumps arrive in the spool while the first waits for its answer.
	const program = `
import glob, sys, time
kept, deadline = [], time.monotonic() + 100
while len(glob.glob(sys.argv[1] + "/*/*.heap")) < 5:
    kept.append(bytearray(100000))
    time.sleep(0.005)
    assert time.monotonic() < deadline
`
	e := job(t, environment(t, spool, "http://"+l.Addr().String()), p.Path, "-c", program, spool)
	if e.status != 0 || strings.Contains(e.stderr, "Traceback") {
		t.Errorf("status %d\n%s", e.status, e.stderr)
	}
	if len(asked) == 0 {
		t.Error("the endpoint was not asked")
	}
	left, err := filepath.Glob(filepath.Join(spool, "*", "*.heap"))
	if err != nil || len(left) < 6 || !strings.HasSuffix(left[len(left)-1], ".exit.heap") {
		t.Errorf("left: %v, %v", left, err)
	}

	// None of the exporter's own memory is in the program's profile.
	var all, own int64
	for _, path := range left {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		heap, err := convert.HeapDump(f, convert.Options{Name: path})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range heap.Profile.Sample {
			bytes := s.Value[len(s.Value)-1]
			all += bytes
			for _, l := range s.Location {
				if l.Mapping != nil && strings.Contains(l.Mapping.File, "libheapwire_inproc") {
					own += bytes
					break
				}
			}
		}
	}
	if all == 0 || own != 0 {
		t.Errorf("%d bytes of %d are the exporter's", own, all)
	}
}

// Who exports: by default a process with a sink.
func TestWhoExports(t *testing.T) {
	p := supported(t)[0]
	const program = `
import os, time
kept, deadline = [], time.monotonic() + float(os.environ["WAIT"])
def ours():
    out = 0
    for task in os.listdir("/proc/self/task"):
        try:
            out += open("/proc/self/task/%s/comm" % task).read() == "heapwire\n"
        except OSError:
            pass
    return out
while ours() < 3 and time.monotonic() < deadline:
    kept.append(bytearray(100000))
    time.sleep(0.01)
print("libheapwire_inproc" in open("/proc/self/maps").read(), ours() >= 3)
`
	const soon, never = "WAIT=100", "WAIT=1"
	for _, c := range []struct {
		name, want, says string
		env              []string
	}{
		{"a sink for profiles", "True True", "connection refused", []string{soon, "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT=http://127.0.0.1:1/v1development/profiles"}},
		{"Pyroscope", "True True", "connection refused", []string{soon, "PYROSCOPE_SERVER_ADDRESS=http://127.0.0.1:1"}},
		{"no sink", "False False", "", []string{never}},
		{"not wanted", "False False", "", []string{never, "HEAPWIRE_EXPORT=off", "PYROSCOPE_SERVER_ADDRESS=http://127.0.0.1:1"}},
		{"no profiling", "False False", "", []string{never, "HEAPWIRE=off", "PYROSCOPE_SERVER_ADDRESS=http://127.0.0.1:1"}},
		{"wanted without a sink", "False False", "nothing says where to", []string{never, "HEAPWIRE_EXPORT=inproc"}},
		{"a sink that is none", "True True", "PYROSCOPE_SERVER_ADDRESS: want", []string{soon, "PYROSCOPE_SERVER_ADDRESS=nowhere"}},
		{"no interval", "True True", "", []string{soon, "HEAPWIRE_INTERVAL=0", "HEAPWIRE_EXIT_DUMP=off", "PYROSCOPE_SERVER_ADDRESS=http://127.0.0.1:1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := job(t, environment(t, t.TempDir(), "", c.env...), p.Path, "-c", program)
			if strings.TrimSpace(e.stdout) != c.want || !strings.Contains(e.stderr, c.says) || c.says == "" && strings.Contains(e.stderr, "heapwire[") {
				t.Errorf("mapped, started: %s\n%s", e.stdout, e.stderr)
			}
		})
	}
}

// setproctitle writes over the environment on the stack; the exporter has a copy.
func TestTheEnvironmentIsThatOfTheStart(t *testing.T) {
	arrived := filepath.Join(t.TempDir(), "arrived")
	r := receiver(t, func() { _ = os.WriteFile(arrived, nil, 0o600) })
	p := supported(t)[0]
	const program = `
import ctypes, sys, time, os
with open("/proc/self/stat") as f:
    fields = f.read().rsplit(")", 1)[1].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, ord("x"), end - start - 1)
assert b"OTEL" not in open("/proc/self/environ", "rb").read()
kept, deadline = [], time.monotonic() + 100
while not os.path.exists(sys.argv[1]):
    kept.append(bytearray(100000))
    time.sleep(0.01)
    assert time.monotonic() < deadline
`
	if e := job(t, environment(t, t.TempDir(), r.HTTP), p.Path, "-c", program, arrived); e.status != 0 {
		t.Errorf("status %d\n%s", e.status, e.stderr)
	}
}

// A job is killed at any instant: what it had dumped arrives, by its parent or the next process that exports, and can be
// read. In a soak the age of the newest is held against the interval: the job may lose that and a second.
func TestAJobThatIsKilledLosesAnIntervalAtMost(t *testing.T) {
	rounds := 3
	if soaking() {
		rounds = 50
	}
	p := supported(t)[0]
	for _, home := range []string{"heapwire run", "in the process"} {
		t.Run(home, func(t *testing.T) {
			var oldest time.Duration
			for range rounds {
				r := receiver(t, nil)
				spool := t.TempDir()
				env := environment(t, spool, r.HTTP)
				command := []string{p.Path, "testdata/leak.py"}
				if home == "heapwire run" {
					env = pythons.CleanEnv("OTEL_EXPORTER_OTLP_ENDPOINT="+r.HTTP, "HEAPWIRE_SPOOL="+spool, "HEAPWIRE_JUMP=off")
					command = append([]string{built(t, "heapwire"), "run", "--interval", interval.String(), "--drain-timeout", "2m", "--"}, command...)
				}
				pid, killed := killAnywhere(t, env, r, command...)
				if home != "heapwire run" {
					drained(t, p, spool, r.HTTP)
				}
				a := arrivals(t, r.Received())[pid]
				if a == nil || a.repeats > 1 {
					t.Fatalf("of process %d arrived %+v", pid, a)
				}
				stacks, err := otlptest.Stacks(a.newest)
				if err != nil {
					t.Fatal(err)
				}
				var leaked int64
				for stack, values := range stacks {
					if strings.Contains(stack, "leak_here") {
						leaked += values["inuse_space/bytes"]
					}
				}
				if leaked == 0 {
					t.Errorf("no leak in the newest profile: %v", stacks)
				}
				oldest = max(oldest, killed.Sub(a.at))
			}
			t.Logf("%d kills, the newest profile was %v old at most", rounds, oldest.Round(time.Millisecond))
			if soaking() && oldest > interval+time.Second {
				t.Errorf("want %v at most", interval+time.Second)
			}
		})
	}
}

// killAnywhere starts a command that prints the pid of the process to be killed, awaits a dump with its leak, and kills it at a random
// instant. It returns when the command has ended.
func killAnywhere(t *testing.T, env []string, r *otlptest.Receiver, command ...string) (pid int, killed time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), jobLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	leaks := func(pd pprofile.Profiles) bool {
		return slices.Contains(pd.Dictionary().StringTable().AsRaw(), "leak_here")
	}
	for !slices.ContainsFunc(r.Received(), leaks) {
		if ctx.Err() != nil {
			t.Fatalf("no dump\n%s", &stderr)
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(rand.N(4 * interval))
	killed = time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if s := status(cmd.ProcessState); s != 128+int(syscall.SIGKILL) {
		t.Fatalf("status %d\n%s", s, &stderr)
	}
	return pid, killed
}

func threadsProgram(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "threads")
	if text, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", out, "testdata/threads.c", "-lpthread", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

// dlopen takes two locks of the loader's; a callback of dl_iterate_phdr that calls dlopen takes them in the other order. A
// library that is loaded meanwhile hangs the program; the exporter is there already.
func TestTheLibraryIsNotLoadedUnderALockThatSomebodyHas(t *testing.T) {
	program := threadsProgram(t)
	const patience = 5 * time.Second
	hung := false
	for i := 0; i < 5 && !hung; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		cmd := exec.CommandContext(ctx, program, "iterate", library(t))
		out, err := cmd.CombinedOutput()
		if hung = ctx.Err() != nil; !hung && err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		cancel()
	}
	rounds := 5
	if soaking() {
		rounds = 100
	}
	for range rounds {
		env := environment(t, t.TempDir(), "http://127.0.0.1:1", "HEAPWIRE_TARGET=all")
		if e := job(t, env, program, "iterate"); e.status != 0 {
			t.Fatalf("status %d\n%s", e.status, e.stderr)
		}
	}
	if !hung {
		t.Skip("did no harm, but cannot tell here: a dlopen at that time does none either")
	}
}

// When the last thread of the program's own ends, so does the process.
func TestTheExportersThreadsKeepNoProcess(t *testing.T) {
	r := receiver(t, nil)
	spool := t.TempDir()
	e := job(t, environment(t, spool, r.HTTP, "HEAPWIRE_TARGET=all"), threadsProgram(t), "last")
	if e.status != 0 || e.stderr != "" {
		t.Errorf("status %d\n%s", e.status, e.stderr)
	}
	left, err := filepath.Glob(filepath.Join(spool, "*", "*.heap"))
	if err != nil || len(left)+len(r.Received()) == 0 {
		t.Errorf("left %v, %v; %d arrived", left, err, len(r.Received()))
	}
}

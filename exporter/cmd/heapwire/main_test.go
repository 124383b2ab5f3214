// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/klauspost/compress/zstd"

	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/run"
)

// The test binary is the program, when a test starts it as that.
func TestMain(m *testing.M) {
	if os.Getenv("HEAPWIRE_TEST_MAIN") != "" {
		os.Unsetenv("HEAPWIRE_TEST_MAIN")
		os.Exit(execute(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// call is one call of the program.
type call struct {
	dir    string
	env    []string
	stdin  string
	stdout bytes.Buffer
	stderr bytes.Buffer
}

func newCall(t *testing.T, env ...string) *call {
	t.Helper()
	c := &call{dir: t.TempDir()}
	tmp := filepath.Join(c.dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	c.env = append([]string{"HEAPWIRE_TEST_MAIN=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp}, env...)
	return c
}

func (c *call) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.dir, c.env, strings.NewReader(c.stdin), &c.stdout, &c.stderr
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

func (c *call) do(t *testing.T, args ...string) int {
	t.Helper()
	c.stdout.Reset()
	c.stderr.Reset()
	err := c.command(args...).Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", args, err)
	}
	if exit != nil {
		return exit.ExitCode()
	}
	return 0
}

func (c *call) says(t *testing.T, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(c.stderr.String(), part) {
			t.Errorf("stderr lacks %q:\n%s", part, c.stderr.String())
		}
	}
}

// library is a shared object that may be preloaded without effect.
func library(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/lib/*/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"} {
		found, _ := filepath.Glob(pattern)
		if len(found) == 0 {
			continue
		}
		lib := filepath.Join(t.TempDir(), "libheapwire.so")
		if err := os.Symlink(found[0], lib); err != nil {
			t.Fatal(err)
		}
		python := filepath.Join(filepath.Dir(lib), "heapwire-python")
		if err := os.Mkdir(python, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(python, "sitecustomize.py"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return lib
	}
	t.Skip("no libm.so.6 to preload")
	return ""
}

const blockBytes = 64 << 20 // far above the sampling interval, so that the estimate is the number printed

// dump makes the text of a dump in which leak holds so many blocks, and steady one.
func dump(t *testing.T, leaked uint64) []byte {
	t.Helper()
	stack := func(id uint32, line int, objects uint64) dumpgen.Stack {
		return dumpgen.Stack{
			Frames:  []uint64{dumpgen.Token(id, line), dumpgen.Token(3, 99)},
			Objects: objects, Bytes: objects * blockBytes, AccumObjects: objects, AccumBytes: objects * blockBytes,
		}
	}
	d := dumpgen.Dump{
		SampleBytes: 512 << 10, Threads: []string{""},
		Stacks: []dumpgen.Stack{stack(1, 12, leaked), stack(2, 34, 1)},
		Functions: []dumpgen.Function{
			{ID: 1, Name: "Cache.leak", File: "/srv/app.py", Line: 10}, {ID: 2, Name: "steady", File: "/srv/app.py", Line: 30},
			{ID: 3, Name: "main", File: "/srv/app.py", Line: 90},
		},
	}
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// spoolJob is a shell function that makes the process folder a shim would have made, for the process that calls it with
// the dumps 1.heap, 2.heap, …; the dump with this number is the last to be written.
const spoolJob = `
set -e
umask 077
host=$(uname -n | cut -c1-64 | sed 's/[^A-Za-z0-9._]/_/g')
start=$(sed 's/.*) //' /proc/$$/stat | cut -d' ' -f20)
folder=$HEAPWIRE_SPOOL/$host-$$-$start
mkdir "$folder"
printf '{"schema":1,"host":"%s","pid":%d,"start_ticks":%d,"service_name":"trainer"}' "$(uname -n)" $$ $start > "$folder/process.json"
put() { cp "$DUMPS/$1.heap" "$folder/.00000$1.tmp"; mv "$folder/.00000$1.tmp" "$folder/00000$1.$2.heap"; }
`

// jobCall prepares a call of run whose job writes dumps.
func jobCall(t *testing.T, env ...string) *call {
	t.Helper()
	c := newCall(t, append([]string{"HEAPWIRE_LIB=" + library(t)}, env...)...)
	for n := uint64(1); n <= 3; n++ {
		if err := os.WriteFile(filepath.Join(c.dir, fmt.Sprintf("%d.heap", n)), dump(t, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, "4.heap"), []byte("no dump\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.env = append(c.env, "DUMPS="+c.dir)
	return c
}

func (c *call) left() []string {
	found, _ := filepath.Glob(filepath.Join(c.dir, "tmp", "*"))
	return found
}

func (c *call) profiles(out string) []string {
	found, _ := filepath.Glob(filepath.Join(c.dir, out, "*", "*.pb.gz"))
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return found
}

func TestRunDeliversAndSums(t *testing.T) {
	t.Parallel()
	c := jobCall(t)
	status := c.do(t, "run", "sh", "-c", spoolJob+`put 1 interval; put 2 interval; put 3 exit; echo output; exit 5`)
	if status != 5 || c.stdout.String() != "output\n" {
		t.Errorf("status %d, stdout %q\n%s", status, &c.stdout, &c.stderr)
	}
	want := []string{"000001.interval.pb.gz", "000002.interval.pb.gz", "000003.exit.pb.gz"}
	if got := c.profiles("heapwire-out"); !slices.Equal(got, want) {
		t.Errorf("profiles %v, want %v\n%s", got, want, &c.stderr)
	}
	c.says(t, "heapwire: sh: exit status 5 after ", "heapwire: 3 dumps of 1 process", "heapwire: file: 3 delivered to heapwire-out\n",
		"heapwire: live heap at the end: 256.0 MiB\n", "+128.0 MiB  Cache.leak /srv/app.py:12 < main app.py:99\n")
	if strings.Contains(c.stderr.String(), "steady") {
		t.Errorf("what has not grown is among the growers:\n%s", &c.stderr)
	}
	summary, err := os.ReadFile(filepath.Join(c.dir, "heapwire-out", "summary.txt"))
	if err != nil || !strings.HasSuffix(c.stderr.String(), string(summary)) || len(summary) == 0 {
		t.Errorf("summary.txt %q, %v", summary, err)
	}
	if left := c.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRunDeliversTheLastWordsOfAKilledJob(t *testing.T) {
	t.Parallel()
	c := jobCall(t)
	status := c.do(t, "run", "--out", "o", "--", "sh", "-c", spoolJob+`put 1 interval; put 2 interval; kill -KILL $$`)
	if status != 128+9 || len(c.profiles("o")) != 2 {
		t.Errorf("status %d, profiles %v", status, c.profiles("o"))
	}
	c.says(t, "sh: killed by SIGKILL", "2 dumps")
	if left := c.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRunTellsTheCollectorOfAKilledJob(t *testing.T) {
	t.Parallel()
	r, err := otlptest.Start(t.Context(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown(context.Background())
	c := jobCall(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+r.HTTP)
	status := c.do(t, "run", "--", "sh", "-c", spoolJob+`put 1 interval; put 2 interval; kill -KILL $$`)
	if status != 128+9 || len(r.Received()) != 2 || len(r.Metrics()) < 2 || len(r.Logs()) != 1 { // the third are our own, if there was time
		t.Fatalf("status %d, %d profiles, %d metrics, %d logs\n%s", status, len(r.Received()), len(r.Metrics()), len(r.Logs()), &c.stderr)
	}
	got := r.Logs()[0].ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes().AsRaw()
	id := r.Received()[1].ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).ProfileID()
	if got["heapwire.exit.signal.name"] != "SIGKILL" || got["heapwire.last.seq"] != int64(2) || got["profile_id"] != fmt.Sprintf("%x", id[:]) {
		t.Errorf("attributes %v", got)
	}
	c.says(t, "otlp: 2 delivered", "otlp-metrics: 2 delivered", "otlp-logs: 1 event delivered")

	status = c.do(t, "run", "--", "sh", "-c", spoolJob+`put 1 interval; exit 3`)
	if status != 3 || len(r.Received()) != 3 || len(r.Logs()) != 1 {
		t.Errorf("a job that exits without a last dump: status %d, %d profiles, %d logs\n%s", status, len(r.Received()), len(r.Logs()), &c.stderr)
	}
}

func TestRunSetsAsideWhatIsNoDump(t *testing.T) {
	t.Parallel()
	c := jobCall(t)
	status := c.do(t, "run", "--out", "o", "--", "sh", "-c", spoolJob+`put 4 interval; put 1 exit`)
	if status != 0 || len(c.profiles("o")) != 1 {
		t.Errorf("status %d, profiles %v", status, c.profiles("o"))
	}
	c.says(t, "000004.interval.heap", "not a jemalloc heap_v2 dump", "2 dumps of 1 process, 1 unreadable and set aside", "left in the spool: ")
	found, _ := filepath.Glob(filepath.Join(c.dir, "tmp", "*", "*", "000004.interval.heap.rejected*"))
	if len(found) != 2 {
		t.Errorf("set aside: %v", found)
	}
}

func TestRunKeepsTheExitStatusWhenASinkIsDown(t *testing.T) {
	t.Parallel()
	c := jobCall(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1") // a port that no program is given
	began := time.Now()
	status := c.do(t, "run", "--out", "o", "--drain-timeout", "5s", "sh", "-c", spoolJob+`put 1 interval; put 2 exit; exit 9`)
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("took %v", took)
	}
	if status != 9 || len(c.profiles("o")) != 2 {
		t.Errorf("status %d, profiles %v", status, c.profiles("o"))
	}
	c.says(t, "sink otlp failed", "otlp: 0 delivered, 2 not delivered", "file: 2 delivered to o", "left in the spool: "+filepath.Join(c.dir, "tmp"), "2 not delivered; its folder is left")
	if found, _ := filepath.Glob(filepath.Join(c.dir, "tmp", "*", "*", "*.heap")); len(found) != 2 {
		t.Errorf("left: %v", found)
	}
	if n := strings.Count(c.stderr.String(), "connection refused"); n != 2 { // once a sink: profiles and metrics
		t.Errorf("told %d times:\n%s", n, &c.stderr)
	}
}

func TestASignalAfterTheJobsEndCutsDeliveryShort(t *testing.T) {
	t.Parallel()
	c := jobCall(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1") // a port that no program is given
	cmd := c.command("run", "--drain-timeout", "10m", "sh", "-c", spoolJob+`put 1 exit; echo $$ > "$DUMPS/pid"; exit 9`)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		pid, err := os.ReadFile(filepath.Join(c.dir, "pid"))
		if err == nil && len(pid) > 0 {
			if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); os.IsNotExist(err) {
				tick.Stop()
				break
			}
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 9 {
		t.Errorf("exit status %d (-1: it went on until it was killed)\n%s", got, &c.stderr)
	}
	c.says(t, "otlp: 0 delivered, 1 not delivered")
}

func TestRunLeavesTheFolderOfAProcessThatLives(t *testing.T) {
	t.Parallel()
	c := jobCall(t)
	cmd := c.command("run", "--out", "o", "--", "sh", "-c", `sh -c "$1" >/dev/null 2>&1 & until [ -e "$DUMPS/written" ]; do sleep 0.01; done; echo $!`, "sh",
		spoolJob+`put 1 interval; : > "$DUMPS/written"; exec sleep 1000`)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &c.stderr)
	}
	var pid int
	if _, err := fmt.Sscan(c.stdout.String(), &pid); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	c.says(t, "1 dump of 1 process", fmt.Sprintf("process %d: still running; its folder is left: %s", pid, filepath.Join(c.dir, "tmp")))
	if len(c.profiles("o")) != 1 || len(c.left()) != 1 {
		t.Errorf("profiles %v, left %v", c.profiles("o"), c.left())
	}
}

func TestRunDeliversWhatAnEarlierJobLeft(t *testing.T) {
	t.Parallel()
	c := jobCall(t)
	shared := filepath.Join(c.dir, "shared")
	host, _ := os.Hostname()
	old := filepath.Join(shared, strings.ReplaceAll(host, "-", "_")+"-4194301-1")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	identity := fmt.Sprintf(`{"schema":1,"host":%q,"pid":4194301,"start_ticks":1}`, host)
	err := errors.Join(os.WriteFile(filepath.Join(old, "process.json"), []byte(identity), 0o600), os.WriteFile(filepath.Join(old, "000007.exit.heap"), dump(t, 100), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	status := c.do(t, "run", "--spool", shared, "--out", "o", "sh", "-c", spoolJob+`put 1 exit`)
	if status != 0 || len(c.profiles("o")) != 2 {
		t.Errorf("status %d, profiles %v\n%s", status, c.profiles("o"), &c.stderr)
	}
	c.says(t, "2 dumps of 1 process", "1 of them were in the spool from earlier processes", "live heap at the end: 128.0 MiB")
	if entries, err := os.ReadDir(shared); len(entries) > 0 || err != nil {
		t.Errorf("the shared spool has %v, %v", entries, err)
	}
}

func TestRunKeep(t *testing.T) {
	t.Parallel()
	c := jobCall(t)
	if status := c.do(t, "run", "--keep", "--spool", "s", "--no-summary", "sh", "-c", spoolJob+`put 1 interval; put 2 exit`); status != 0 || c.stderr.Len() > 0 {
		t.Errorf("status %d, stderr %q", status, &c.stderr)
	}
	found, _ := filepath.Glob(filepath.Join(c.dir, "s", "*", "delivered", "*.heap"))
	if len(found) != 2 {
		t.Errorf("kept: %v", found)
	}
}

func TestRunTellsTheShimThroughTheEnvironment(t *testing.T) {
	t.Parallel()
	lib := library(t)
	c := newCall(t, "HEAPWIRE_LIB="+lib, "LD_PRELOAD=", "PYTHONPATH=", "OTEL_SERVICE_NAME=mine", "A=1")
	if status := c.do(t, "run", "--interval", "1500ms", "--sample-bytes", "1000KiB", "--no-summary", "--spool", "s", "env"); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	got := strings.Split(strings.TrimSpace(c.stdout.String()), "\n")
	want := run.Unset(c.env, "HEAPWIRE_TEST_MAIN")
	for _, v := range [][2]string{
		{"HEAPWIRE_EXPORT", "off"}, {"LD_PRELOAD", lib}, {"PYTHONPATH", filepath.Join(filepath.Dir(lib), "heapwire-python")},
		{"HEAPWIRE_INTERVAL", "1500ms"}, {"HEAPWIRE_SAMPLE_BYTES", "524288"}, {"HEAPWIRE_SPOOL", filepath.Join(c.dir, "s")},
	} {
		want = run.Set(want, v[0], v[1])
	}
	got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "PWD=") })
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("environment\n%q\nwant\n%q", got, want)
	}
}

func TestRunGoesOnWithoutASinkThatIsMisconfigured(t *testing.T) {
	t.Parallel()
	c := jobCall(t, "OTEL_EXPORTER_OTLP_ENDPOINT=ftp://nowhere", "OTEL_EXPORTER_OTLP_TIMEOUT=soon")
	status := c.do(t, "run", "sh", "-c", spoolJob+`put 1 exit; exit 3`)
	if status != 3 || len(c.profiles("heapwire-out")) != 1 {
		t.Errorf("status %d, profiles %v", status, c.profiles("heapwire-out"))
	}
	c.says(t, "sink otlp: ", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TIMEOUT")
}

func TestRunOutlivesAClosedStandardError(t *testing.T) {
	t.Parallel()
	c := jobCall(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	cmd := c.command("run", "sh", "-c", spoolJob+`put 1 exit; exit 6`)
	cmd.Stderr = w
	err = cmd.Run()
	w.Close()
	if got := cmd.ProcessState.ExitCode(); got != 6 {
		t.Errorf("exit status %d, %v", got, err)
	}
	if len(c.profiles("heapwire-out")) != 1 {
		t.Errorf("profiles %v", c.profiles("heapwire-out"))
	}
}

func TestFailuresBeforeTheJobStarts(t *testing.T) {
	t.Parallel()
	lib := library(t)
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"run", "--lib", "missing.so", "touch", "ran"}, 1, "finding libheapwire.so: "},
		{[]string{"run", "touch", "ran"}, 1, "name it with --lib or HEAPWIRE_LIB"},
		{[]string{"run", "--lib", lib, "--spool", "/dev/null/x", "touch", "ran"}, 1, "making the spool: "},
		{[]string{"run"}, 2, "no command to run"},
		{[]string{"run", "--"}, 2, "no command to run"},
		{[]string{"run", "--what", "touch", "ran"}, 2, "unknown flag: --what"},
		{[]string{"run", "--interval", "1ms", "touch", "ran"}, 2, "--interval 1ms: want 100ms to 24h"},
		{[]string{"run", "--sample-bytes", "0", "touch", "ran"}, 2, "want 1 to 1024GiB"},
		{[]string{"run", "--sample-bytes", "9PiB", "touch", "ran"}, 2, "want 1 to 1024GiB"},
		{[]string{"run", "--lg-sample", "41", "touch", "ran"}, 2, "--lg-sample 41: want 0 to 40"},
		{[]string{"run", "--lg-sample", "19", "--sample-bytes", "1", "touch", "ran"}, 2, "give one"},
		{[]string{"run", "--drain-timeout", "-1s", "touch", "ran"}, 2, "--drain-timeout -1s"},
		{[]string{"run", "--lib", lib, "no-such-command"}, 127, "starting no-such-command: no such file or directory"},
		{[]string{"run", "--lib", lib, "/dev/null"}, 126, "starting /dev/null: permission denied"},
		{[]string{}, 2, "no command"},
		{[]string{"what"}, 2, `no command "what"`},
		{[]string{"version", "what"}, 2, `unexpected argument "what"`},
		{[]string{"convert"}, 2, "no input"},
		{[]string{"convert", "-", "-"}, 2, "standard input is named 2 times"},
		{[]string{"convert", "--format", "svg", "x"}, 2, `format "svg": want pprof, otlp`},
		{[]string{"push"}, 2, "no input"},
		{[]string{"env", "--shell", "fish"}, 2, `--shell "fish": want sh, docker or k8s`},
	} {
		call := newCall(t)
		if status := call.do(t, c.args...); status != c.status || call.stdout.Len() > 0 {
			t.Errorf("%q: status %d, stdout %q; want %d", c.args, status, &call.stdout, c.status)
		}
		if !strings.Contains(call.stderr.String(), c.says) || !strings.HasPrefix(call.stderr.String(), "heapwire: ") {
			t.Errorf("%q says %q, want %q", c.args, &call.stderr, c.says)
		}
		if _, err := os.Stat(filepath.Join(call.dir, "ran")); err == nil {
			t.Errorf("%q: the job ran", c.args)
		}
		if left := call.left(); len(left) > 0 {
			t.Errorf("%q: left %v", c.args, left)
		}
	}
}

func TestConvertKnowsInputsByTheirContent(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	text := dump(t, 2)
	var zipped, zst bytes.Buffer
	g := gzip.NewWriter(&zipped)
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []interface {
		Write([]byte) (int, error)
		Close() error
	}{g, z} {
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string][]byte{"plain": text, "zipped": zipped.Bytes(), "zst": zst.Bytes()}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"plain", "zipped", "zst"} {
		if status := c.do(t, "convert", name, "-o", name+".pb.gz"); status != 0 || c.stdout.Len() > 0 {
			t.Fatalf("%s: status %d: %s", name, status, &c.stderr)
		}
	}
	c.stdin = string(text)
	const folded = "main app.py:99;Cache.leak app.py:12 134217728\nmain app.py:99;steady app.py:34 67108864\n"
	for _, inputs := range [][]string{{"plain"}, {"zipped"}, {"zst"}, {"plain.pb.gz"}, {"zst.pb.gz"}, {"-"}} {
		if status := c.do(t, append([]string{"convert", "--format", "folded"}, inputs...)...); status != 0 || c.stdout.String() != folded {
			t.Errorf("%v: status %d, stdout %q, want %q\n%s", inputs, status, &c.stdout, folded, &c.stderr)
		}
	}
	// Several are added up.
	if status := c.do(t, "convert", "--format", "folded", "plain", "zst.pb.gz", "-"); status != 0 ||
		c.stdout.String() != "main app.py:99;Cache.leak app.py:12 402653184\nmain app.py:99;steady app.py:34 201326592\n" {
		t.Errorf("status %d, stdout %q\n%s", status, &c.stdout, &c.stderr)
	}
	info, err := os.Stat(filepath.Join(c.dir, "plain.pb.gz"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	f, err := os.Open(filepath.Join(c.dir, "plain.pb.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := profile.Parse(f); err != nil {
		t.Error(err)
	}
}

func TestConvertFormats(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	c.stdin = string(dump(t, 2))
	for format, want := range map[string]string{
		"otlp": "Cache.leak", "otlp-json": `"resourceProfiles"`, "html": "<html", "text": "inuse_space: 192.0 MiB in 2 stacks",
	} {
		if status := c.do(t, "convert", "--format", format, "-"); status != 0 || !strings.Contains(c.stdout.String(), want) {
			t.Errorf("%s: status %d, %d bytes without %q\n%s", format, status, c.stdout.Len(), want, &c.stderr)
		}
	}
	if status := c.do(t, "convert", "--format", "text", "--rows", "1", "-"); status != 0 {
		t.Fatal(status)
	}
	if want := "inuse_space: 192.0 MiB in 2 stacks\n" +
		"       flat  flat%        cum   cum%  objects  line\n" +
		"  128.0 MiB  66.7%  128.0 MiB  66.7%        2  Cache.leak /srv/app.py:12\n"; c.stdout.String() != want {
		t.Errorf("table\n%s\nwant\n%s", &c.stdout, want)
	}
	c.stdin = strings.Replace(c.stdin, "HEAPWIRE_META: 1\n", "HEAPWIRE_META: 1\nrss=4194304\npart_allocator=3145728\npart_sum=3145728\n", 1)
	if status := c.do(t, "convert", "--format", "text", "-"); status != 0 || !strings.Contains(c.stdout.String(), "25.0%  not explained\n") {
		t.Errorf("status %d, no account of resident memory in\n%s", status, &c.stdout)
	}
	if status := c.do(t, "convert", "--format", "text", "--sample-type", "what", "-"); status != 2 {
		t.Errorf("status %d", status)
	}
	c.says(t, `sample type "what": the profile has `)
}

func TestConvertSnapshots(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	made := snapgen.Generate(snapgen.Options{Form: snapgen.Forms[len(snapgen.Forms)-1], Leak: 1 << 20, Steps: 6, StepMarks: true, OOM: true})
	var file bytes.Buffer
	if err := made.Write(&file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "x.pickle"), file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	truth := made.Truth()
	// Every view is a profile whose total is the allocator's.
	for view, want := range map[string]int64{"live": truth.Requested, "peak": truth.Peak, "reserved": truth.Reserved, "inactive": truth.Inactive} {
		if status := c.do(t, "convert", "--view", view, "x.pickle"); status != 0 {
			t.Fatalf("%s: status %d: %s", view, status, &c.stderr)
		}
		p, err := profile.Parse(&c.stdout)
		if err != nil {
			t.Fatalf("%s: %v", view, err)
		}
		var sum int64
		for _, s := range p.Sample {
			sum += s.Value[len(s.Value)-1]
		}
		if sum != want {
			t.Errorf("%s: %d bytes, the snapshot has %d", view, sum, want)
		}
	}
	c.stdin = file.String()
	if status := c.do(t, "convert", "--format", "text", "-"); status != 0 || !strings.Contains(c.stdout.String(), "live at the dump:") ||
		!strings.Contains(c.stdout.String(), "at the peak:") || !strings.Contains(c.stdout.String(), "out of memory") {
		t.Errorf("status %d, stdout\n%s\nstderr %s", status, &c.stdout, &c.stderr)
	}
	for _, bad := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"convert", "--view", "nonsense", "x.pickle"}, 2, `view "nonsense": want live, peak, `},
		{[]string{"convert", "--device", "cuda:9", "x.pickle"}, 1, "x.pickle: "},
	} {
		if status := c.do(t, bad.args...); status != bad.status || !strings.Contains(c.stderr.String(), bad.says) {
			t.Errorf("%v: status %d, %q", bad.args, status, &c.stderr)
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, "plain"), dump(t, 2), 0o600); err != nil {
		t.Fatal(err)
	}
	if status := c.do(t, "convert", "--view", "live", "plain"); status != 2 || !strings.Contains(c.stderr.String(), "plain is none") {
		t.Errorf("a view of a heap dump: status %d, %q", status, &c.stderr)
	}
}

func TestConvertNamesFileAndByte(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	var cut bytes.Buffer
	g := gzip.NewWriter(&cut)
	if _, err := g.Write(bytes.Repeat([]byte("x"), 1<<20)); err != nil {
		t.Fatal(err)
	}
	g.Close()
	for name, data := range map[string]string{
		"empty": "", "text": "hello\n", "garbage": "heap_v2/x\n", "short": "heap_v2/524288\n", "cut.gz": cut.String()[:cut.Len()-9],
		"snapshot": "\x80\x04\x95", "zip": "PK\x03\x04....", "half.gz": "\x1f\x8b",
	} {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"missing": "reading missing: no such file or directory", "empty": "empty: byte 0: the file is empty", "text": "text: byte 0: neither",
		"garbage": "garbage: line 1 (byte ", "short": "short: line ", "cut.gz": "cut.gz: byte ", "snapshot": "snapshot: no whole segment or event: pickle: byte 3: ",
		"zip": "zip: byte 0: a zip archive", "half.gz": "half.gz: byte 0: ", ".": "is a folder",
	} {
		if status := c.do(t, "convert", name, "-o", "out"); status != 1 || !strings.Contains(c.stderr.String(), want) {
			t.Errorf("%s: status %d, %q; want %q", name, status, &c.stderr, want)
		}
	}
	if found, _ := filepath.Glob(filepath.Join(c.dir, "*out*")); len(found) > 0 {
		t.Errorf("a failed conversion left %v", found)
	}
}

func TestConvertWarnsAndGivesWhatIsWhole(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	text := dump(t, 2)
	c.stdin = string(text[:bytes.Index(text, []byte("HEAPWIRE_FRAMES"))])
	if status := c.do(t, "convert", "--format", "text", "-"); status != 0 || !strings.Contains(c.stdout.String(), "192.0 MiB") {
		t.Errorf("status %d, %s", status, &c.stdout)
	}
	c.says(t, "heapwire: warning: standard input: ")
}

func TestAnOutputThatIsNoFileIsWrittenToNotReplaced(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	c.stdin = string(dump(t, 2))
	pipe := filepath.Join(c.dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() { b, _ := os.ReadFile(pipe); read <- string(b) }()
	if status := c.do(t, "convert", "--format", "folded", "-o", "pipe", "-"); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	if got := <-read; !strings.Contains(got, "Cache.leak") {
		t.Errorf("the pipe got %q", got)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is %v, %v", info.Mode(), err)
	}
	if status := c.do(t, "convert", "-o", "no/such/folder", "-"); status != 1 {
		t.Errorf("status %d", status)
	}
	c.says(t, "writing no/such/folder: ")
}

func TestPush(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	c := newCall(t, "OTEL_SERVICE_NAME=offline")
	for name, data := range map[string][]byte{"000007.exit.heap": dump(t, 2), "bad": []byte("hello")} {
		if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	status := c.do(t, "push", "--otlp-endpoint", server.URL, "--out", "o", "bad", "000007.exit.heap")
	if status != 1 || requests.Load() != 2 {
		t.Errorf("status %d, %d requests", status, requests.Load())
	}
	c.says(t, "bad: byte 0: neither", "2 delivered, 1 failed")
	if found, _ := filepath.Glob(filepath.Join(c.dir, "o", "*", "000007.exit.pb.gz")); len(found) != 1 {
		t.Errorf("no file was written")
	}
	if status := c.do(t, "push", "--out", "o", "000007.exit.heap"); status != 0 {
		t.Errorf("status %d: %s", status, &c.stderr)
	}
}

func TestEnvIsReadByAShell(t *testing.T) {
	t.Parallel()
	lib := library(t)
	python := filepath.Join(filepath.Dir(lib), "heapwire-python")
	c := newCall(t, "LD_PRELOAD=", "HEAPWIRE_LIB="+lib)
	if status := c.do(t, "env", "--interval", "2s", "--spool", "/with blank/it's"); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	for _, before := range []string{"", lib} {
		cmd := exec.Command("sh", "-c", `eval "$0"; printf '%s|%s|%s|%s' "$LD_PRELOAD" "$PYTHONPATH" "$HEAPWIRE_INTERVAL" "$HEAPWIRE_SPOOL"`, c.stdout.String())
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LD_PRELOAD=" + before, "PYTHONPATH=" + before}
		preload, modules := lib, python
		if before != "" {
			preload += ":" + before
			modules += ":" + before
		}
		if got, err := cmd.Output(); err != nil || string(got) != preload+"|"+modules+"|2000ms|/with blank/it's" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	for shell, want := range map[string]string{
		"docker": "-e LD_PRELOAD=" + lib + " -e PYTHONPATH=" + python + " -e HEAPWIRE_SAMPLE_BYTES=524288\n",
		"k8s": "env:\n- name: LD_PRELOAD\n  value: \"" + lib + "\"\n- name: PYTHONPATH\n  value: \"" + python + "\"\n" +
			"- name: HEAPWIRE_SAMPLE_BYTES\n  value: \"524288\"\n",
	} {
		if status := c.do(t, "env", "--shell", shell, "--lg-sample", "19"); status != 0 || c.stdout.String() != want {
			t.Errorf("%s: %q, want %q", shell, &c.stdout, want)
		}
	}
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	c := newCall(t)
	if status := c.do(t, "version"); status != 0 || !strings.HasPrefix(c.stdout.String(), "heapwire ") {
		t.Errorf("status %d, %q", status, &c.stdout)
	}
	for _, command := range []string{"run", "convert", "push", "env", "version"} {
		if status := c.do(t, command, "--help"); status != 0 || !strings.Contains(c.stdout.String(), "Examples:\n  ") || c.stderr.Len() > 0 {
			t.Errorf("%s: status %d, %q", command, status, &c.stdout)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := oneLine("a\nb\x1b[2J\u009bc\tü"); got != "a b [2J c ü" {
		t.Errorf("%q", got)
	}
}

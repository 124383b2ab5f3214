// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/shim/test/pythons"
)

// defaultRate is the shim's own sampling interval; the tests' is finer.
const defaultRate = "HEAPWIRE_SAMPLE_BYTES=524288"

// judgement is what heapwire growth --format json says.
type judgement struct {
	Dumps     int
	Processes []struct {
		Process     string
		First, Last int64
	}
	Verdicts []struct {
		Kind, Process, Says, Helps string
		Bytes                      int64
		Numbers                    map[string]float64
		Stack                      []string
	}
	Growth []struct {
		Grew, Steady      int64
		Error, Confidence float64
		PerDump           float64 `json:"per_dump"`
		Shape             string
		Stack             []string
		Differs           []string
	}
}

func (j judgement) kinds() (kinds []string) {
	for _, v := range j.Verdicts {
		kinds = append(kinds, v.Kind)
	}
	return kinds
}

// judge asks heapwire growth.
func judge(t *testing.T, paths ...string) judgement {
	t.Helper()
	cmd := exec.Command(heapwire, append([]string{"growth", "--format", "json", "--rows", "0"}, paths...)...)
	cmd.Env = pythons.CleanEnv()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, &stderr)
	}
	var j judgement
	if err := json.Unmarshal(out, &j); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return j
}

// scenario runs a program that takes its dumps itself, so that they show the same moments however slow the machine is.
func scenario(t *testing.T, env []string, program string, args ...string) *job {
	t.Helper()
	path := filepath.Join(here, program)
	return startRun(t, env, []string{"--interval", "0"}, append([]string{onePython(t).Path, path}, args...)...)
}

// quiet keeps anything but the program from setting dumps off.
var quiet = []string{"HEAPWIRE_PRESSURE=off", "HEAPWIRE_PSI=0", "HEAPWIRE_JUMP=off"}

// at is how a stack's first frame reads that a marker names.
func at(t *testing.T, program, marker string) string {
	t.Helper()
	path := filepath.Join(here, program)
	place, ok := markedPlaces(t, path)[marker]
	if !ok {
		t.Fatalf("%s: no marker %s", program, marker)
	}
	name := place.function
	if !onePython(t).Qualified() {
		name = place.bare()
	}
	return fmt.Sprintf("%s %s:%d", name, path, place.line)
}

// What leaks is named by its line, first of all that grew, and nothing else is called a leak.
func TestLeakScenarios(t *testing.T) {
	for _, c := range []struct {
		program, marker string
		env             []string
		least           int64 // MiB grown
		calls           string
	}{
		{program: "scenarios/requests_kept.py", marker: "groups", least: 9, calls: "step "},
		{program: "scenarios/ids_appended.py", marker: "blocks", least: 25},
		{program: "scenarios/slow_compile.py", marker: "graphs", least: 28},
		{program: "scenarios/cache_and_dict.py", marker: "unbounded", least: 20},
	} {
		t.Run(c.marker, func(t *testing.T) {
			t.Parallel()
			j := scenario(t, append(quiet, c.env...), c.program)
			j.succeed()
			got := judge(t, j.out)
			want := at(t, c.program, c.marker)
			if len(got.Growth) == 0 || got.Growth[0].Stack[0] != want || got.Growth[0].Grew < c.least<<20 {
				t.Fatalf("first is %+v, want %s", got.Growth, want)
			}
			leaks := 0
			for _, v := range got.Verdicts {
				if v.Kind == "leak" {
					leaks++
					if v.Stack[0] != want || v.Numbers["growth"] < float64(c.least<<20) {
						t.Errorf("%s", v.Says)
					}
				}
			}
			if leaks != 1 {
				t.Errorf("%d leaks: %+v", leaks, got.Verdicts)
			}
			if c.calls != "" && !strings.HasPrefix(got.Growth[0].Stack[1], c.calls) {
				t.Errorf("called by %v", got.Growth[0].Stack)
			}
			if !strings.Contains(j.stderr.String(), "heapwire: leak: ") {
				t.Errorf("the summary has no verdict:\n%s", &j.stderr)
			}
		})
	}
}

// 22 KB a call, 2000 calls, the shim's own rate: the slope of the line that keeps them is right within its error.
func TestTheSlopeOfASlowLeak(t *testing.T) {
	t.Parallel()
	j := scenario(t, append(quiet, defaultRate, "HEAPWIRE_EXIT_DUMP=off"), "scenarios/slow_compile.py")
	j.succeed()
	got := judge(t, j.out)
	if len(got.Growth) == 0 || got.Growth[0].Stack[0] != at(t, "scenarios/slow_compile.py", "graphs") {
		t.Fatalf("%+v", got.Growth)
	}
	g := got.Growth[0]
	// A bytearray of 2000 takes a block of 2048, and a small object for its header that is Python's own.
	grown := 1500 * 11 * float64(sizeClass(2001))
	if off := math.Abs(float64(g.Grew) - grown); off > 4*g.Error || math.Abs(g.PerDump*3-float64(g.Grew)) > 3 || g.Confidence < 0.999 {
		t.Errorf("%+v, want %.1f MiB in three dumps", g, grown/(1<<20))
	}
}

// A cache that is full ranks below a dict that is not, though it grew by as much at first.
func TestWhatLevelsOffRanksBelow(t *testing.T) {
	t.Parallel()
	j := scenario(t, quiet, "scenarios/cache_and_dict.py")
	j.succeed()
	got := judge(t, j.out)
	bounded := at(t, "scenarios/cache_and_dict.py", "bounded")
	for i, g := range got.Growth {
		if g.Stack[0] == bounded && (i == 0 || g.Shape != "levels off") {
			t.Errorf("row %d: %+v", i, g)
		}
	}
	for _, v := range got.Verdicts {
		if len(v.Stack) > 0 && v.Stack[0] == bounded && v.Kind != "plateau" {
			t.Errorf("%s: %s", v.Kind, v.Says)
		}
	}
}

// One worker of four keeps what all receive: it is the one that differs.
func TestOneWorkerOfFourDiffers(t *testing.T) {
	t.Parallel()
	j := scenario(t, quiet, "scenarios/one_worker_keeps.py")
	j.succeed()
	leaking := strings.TrimSpace(j.stdout.String())
	got := judge(t, j.out)
	want := at(t, "scenarios/one_worker_keeps.py", "messages")
	if len(got.Growth) == 0 || got.Growth[0].Stack[0] != want || len(got.Growth[0].Differs) != 1 || !strings.Contains(got.Growth[0].Differs[0], "-"+leaking+"-") {
		t.Errorf("want process %s at %s: %+v", leaking, want, got.Growth)
	}
	for _, v := range got.Verdicts {
		if v.Kind == "leak" && (!strings.Contains(v.Process, "-"+leaking+"-") || v.Stack[0] != want) {
			t.Errorf("%s: %s", v.Process, v.Says)
		}
	}
	if !slices.Contains(got.kinds(), "leak") {
		t.Errorf("verdicts %v", got.kinds())
	}
}

// What a killed process delivered before it died names the line.
func TestAKilledProcessLeavesItsVerdict(t *testing.T) {
	t.Parallel()
	j := scenario(t, quiet, "scenarios/killed.py")
	if code := j.wait(); code != 128+int(syscall.SIGKILL) {
		t.Fatalf("exit status %d\n%s", code, j.report())
	}
	got := judge(t, j.out)
	if want := at(t, "scenarios/killed.py", "outputs"); len(got.Verdicts) == 0 || got.Verdicts[0].Kind != "leak" || got.Verdicts[0].Stack[0] != want {
		t.Errorf("%+v", got)
	}
	if text := j.stderr.String(); !strings.Contains(text, "leak: ") || !strings.Contains(text, "killed.py:") {
		t.Errorf("summary:\n%s", text)
	}
}

// Two deployments at equal steps: the back end that keeps its workspaces is told by its line.
func TestDiffOfTwoBackEnds(t *testing.T) {
	t.Parallel()
	outs := map[string]string{}
	for _, backend := range []string{"first", "second"} {
		j := scenario(t, append(quiet, "BACKEND="+backend), "scenarios/switched.py")
		j.succeed()
		outs[backend] = j.out
	}
	diff := func(args ...string) (int, string) {
		cmd := exec.Command(heapwire, append([]string{"diff"}, args...)...)
		cmd.Env = pythons.CleanEnv()
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	want := at(t, "scenarios/switched.py", "workspaces")
	code, text := diff("--fail-over", "5MiB", "--last", "1", outs["first"], outs["second"])
	if code != 3 || !strings.Contains(text, want) || !strings.Contains(text, "new") {
		t.Errorf("status %d, want %s:\n%s", code, want, text)
	}
	if code, text := diff("--fail-over", "5MiB", outs["first"], outs["first"]); code != 0 || !strings.Contains(text, "nothing changed") {
		t.Errorf("status %d:\n%s", code, text)
	}
}

// Memory that malloc has never seen is told as such, and as nothing else.
func TestMemoryOutsideMalloc(t *testing.T) {
	for kind, says := range map[string]string{"private": "private anonymous memory", "shared": "shared memory"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			j := scenario(t, quiet, "scenarios/outside_malloc.py", kind)
			j.succeed()
			got := judge(t, j.out)
			if len(got.Verdicts) != 1 || got.Verdicts[0].Kind != "outside_malloc" || !strings.Contains(got.Verdicts[0].Says, says) ||
				got.Verdicts[0].Bytes < 150<<20 || got.Verdicts[0].Bytes > 180<<20 {
				t.Errorf("%+v", got.Verdicts)
			}
		})
	}
}

// A native leak has its Python caller.
func TestANativeLeakHasItsCaller(t *testing.T) {
	t.Parallel()
	library := filepath.Join(t.TempDir(), "libnative_call.so")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	if out, err := exec.Command(cc, "-O1", "-g", "-fPIC", "-shared", "-o", library, filepath.Join(here, "scenarios/native_call.c")).CombinedOutput(); err != nil {
		t.Fatalf("building the library: %v\n%s", err, out)
	}
	j := scenario(t, quiet, "scenarios/native_call.py", library)
	j.succeed()
	got := judge(t, j.out)
	want := at(t, "scenarios/native_call.py", "calls")
	if len(got.Verdicts) == 0 || got.Verdicts[0].Kind != "leak" || got.Verdicts[0].Stack[0] != want {
		t.Fatalf("want %s: %+v", want, got)
	}
	if text := j.stderr.String(); !strings.Contains(text, "(in eager_call libnative_call.so)") {
		t.Errorf("the native leaf is not named:\n%s", text)
	}
}

// What was freed and is not given back is no leak.
func TestRetentionIsNoLeak(t *testing.T) {
	t.Parallel()
	j := scenario(t, quiet, "scenarios/pages_pinned.py")
	j.succeed()
	got := judge(t, j.out)
	kinds := got.kinds()
	if !slices.Contains(kinds, "allocator_retention") || slices.Contains(kinds, "leak") {
		t.Fatalf("%+v", got.Verdicts)
	}
	for _, v := range got.Verdicts {
		if v.Kind == "allocator_retention" && (v.Bytes < 40<<20 || !strings.Contains(v.Says, "not a leak") || !strings.Contains(v.Says, "trimming would return")) {
			t.Errorf("%s", v.Says)
		}
	}
}

// Reading makes pages a worker's own. The heap of the tree is counted once: what children inherited is the parent's.
func TestCopyOnWriteIsNoLeak(t *testing.T) {
	t.Parallel()
	j := scenario(t, quiet, "scenarios/copy_on_write.py")
	j.succeed()
	got := judge(t, j.out)
	copies, leaks := 0, 0
	for _, v := range got.Verdicts {
		switch v.Kind {
		case "copy_on_write":
			copies++
			if v.Bytes < 30<<20 {
				t.Errorf("%s", v.Says)
			}
		case "leak":
			leaks++
		}
	}
	if copies != 4 || leaks != 0 {
		t.Errorf("%d processes copy, %d leak: %+v", copies, leaks, got.Verdicts)
	}
	var sum, most int64
	for _, p := range got.Processes {
		sum += p.Last
		most = max(most, p.Last)
	}
	if len(got.Processes) != 5 || sum > most*5/4 {
		t.Errorf("%d processes hold %.1f MiB, the parent alone %.1f", len(got.Processes), mib(sum), mib(most))
	}
}

// A spike sets off a dump of its own, and is told as what it is.
func TestASpikeIsNoLeak(t *testing.T) {
	t.Parallel()
	spool := filepath.Join(t.TempDir(), "spool")
	j := startPreloaded(t, spool, []string{"HEAPWIRE_INTERVAL=1h", "HEAPWIRE_PRESSURE=off", "HEAPWIRE_PSI=0", "HEAPWIRE_JUMP=50MiB", "HEAPWIRE_GAP=100ms"},
		onePython(t).Path, filepath.Join(here, "scenarios/spike.py"))
	j.succeed()
	got := judge(t, spool)
	want := at(t, "scenarios/spike.py", "buffers")
	found := false
	for _, v := range got.Verdicts {
		switch v.Kind {
		case "spike":
			found = true
			if v.Stack[0] != want && !strings.Contains(v.Stack[0], "save.<locals>") || !strings.Contains(v.Says, "set off by jump") || v.Bytes < 50<<20 {
				t.Errorf("want %s: %s", want, v.Says)
			}
		case "leak":
			t.Errorf("%s", v.Says)
		}
	}
	if !found {
		t.Errorf("%+v", got)
	}
}

// A snapshot of a device whose memory is in holes.
func TestFragmentationOfADevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot.pickle")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s := snapgen.Generate(snapgen.Options{OOM: true, Unwind: true, Expandable: true})
	if err := s.Write(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	got := judge(t, path)
	if !slices.Contains(got.kinds(), "fragmentation") {
		t.Errorf("%+v", got.Verdicts)
	}
}

// A leak of sixteen lines, three dumps, the shim's own rate, 64 MB grown: first in each of twenty runs, whatever the seed.
func TestThreeDumpsFindALeakInEveryRun(t *testing.T) {
	t.Parallel()
	want := at(t, "scenarios/sixteen_lines.py", "kept")
	var sure atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for seed := range 20 {
			t.Run(strconv.Itoa(seed), func(t *testing.T) {
				t.Parallel()
				j := scenario(t, append(quiet, defaultRate, "HEAPWIRE_EXIT_DUMP=off"), "scenarios/sixteen_lines.py", strconv.Itoa(seed))
				j.succeed()
				got := judge(t, j.out)
				if got.Dumps != 3 || len(got.Growth) == 0 || got.Growth[0].Stack[0] != want {
					t.Fatalf("%d dumps, first is %+v", got.Dumps, got.Growth)
				}
				t.Logf("+%.1f MiB %s", mib(got.Growth[0].Grew), got.Growth[0].Shape)
				for _, v := range got.Verdicts {
					if v.Kind == "leak" {
						sure.Add(1)
						if v.Stack[0] != want {
							t.Error(v.Says)
						}
					}
				}
			})
		}
	})
	if sure.Load() < 18 {
		t.Errorf("a verdict in %d runs of 20", sure.Load())
	}
}

// Ten programs that are well: whatever they do with memory, none is said to leak.
func TestHealthyProgramsHaveNoLeak(t *testing.T) {
	names := []string{"churn", "saw_tooth", "bounded_cache", "loaded_once", "loaded_late", "one_spike", "imports", "handed_over", "shrinks", "logs_rotate"}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := scenario(t, append(quiet, defaultRate), "healthy/healthy.py", name)
			j.succeed()
			got := judge(t, j.out)
			if got.Dumps < 8 {
				t.Errorf("%d dumps", got.Dumps)
			}
			for _, v := range got.Verdicts {
				t.Logf("%s: %s", v.Kind, v.Says)
				if v.Kind == "leak" {
					t.Errorf("%s", v.Says)
				}
			}
			if strings.Contains(j.stderr.String(), "heapwire: leak:") {
				t.Errorf("summary:\n%s", &j.stderr)
			}
		})
	}
}

// The length that a server believed is a verdict, with the line that asked for so much.
func TestAGiantRequestIsAVerdict(t *testing.T) {
	t.Parallel()
	j, spool, _ := giantJob(t, onePython(t), giantThreshold)
	j.until("there is a dump of the giant request", func() (bool, error) {
		paths, err := filepath.Glob(filepath.Join(spool, "*", "*.giant.heap"))
		return len(paths) > 0, err
	})
	got := judge(t, spool) // before a page of it is touched, and while the server waits
	line := markedPlaces(t, filepath.Join(here, "giant_allocation/giant_allocation.py"))["message"].line
	if len(got.Verdicts) == 0 || got.Verdicts[0].Kind != "giant_allocation" ||
		!strings.Contains(got.Verdicts[0].Says, "request of 8.0 GiB by malloc in thread ") || !strings.Contains(got.Verdicts[0].Says, fmt.Sprintf("at read_message giant_allocation.py:%d < serve ", line)) {
		t.Errorf("%+v", got.Verdicts)
	}
	j.succeed()
}

// Pinned memory that is rounded up to powers of two: what was asked for and what was got, and the line that loses most, in the
// summary, in a log record and in the verdicts on what the run has kept.
func TestPinnedMemoryIsRoundedUp(t *testing.T) {
	t.Parallel()
	receiver, err := otlptest.Start(context.Background(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := receiver.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	const (
		program   = "scenarios/pinned_rounded.py"
		staged    = 16 * (8<<20 + 96<<10)
		requested = staged + 4*16<<20 + 3<<20
		got       = 16*16<<20 + 4*16<<20 + 4<<20
	)
	spool := filepath.Join(t.TempDir(), "spool")
	j := startRun(t, append(quiet, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.HTTP), []string{"--interval", "0", "--spool", spool, "--keep", "--drain-timeout", "60s"},
		onePython(t).Path, filepath.Join(here, program))
	j.succeed()
	if j.stdout.String() != "a snapshot\n" {
		t.Fatalf("no snapshot\n%s", j.report())
	}
	want := at(t, program, "staging")
	line := markedPlaces(t, filepath.Join(here, program))["staging"].line
	says := fmt.Sprintf("pinned memory of the host: 196.5 MiB were asked for, 324.0 MiB were got: 127.5 MiB are lost to rounding up to powers of two, 126.5 MiB of it at stage pinned_rounded.py:%d", line)

	verdicts := judge(t, spool).Verdicts
	if len(verdicts) != 1 || verdicts[0].Kind != "rounding" || verdicts[0].Says != says || verdicts[0].Bytes != got-requested ||
		len(verdicts[0].Stack) != 2 || verdicts[0].Stack[0] != want || verdicts[0].Helps == "" {
		t.Fatalf("want %s: %+v", want, verdicts)
	}
	for key, n := range map[string]float64{"requested": requested, "got": got, "rounding": got - requested, "rounding_here": 16*16<<20 - staged, "objects_here": 16} {
		if verdicts[0].Numbers[key] != n {
			t.Errorf("%s is %v, want %v", key, verdicts[0].Numbers[key], n)
		}
	}
	if text := j.stderr.String(); !strings.Contains(text, "heapwire: rounding: "+says) {
		t.Errorf("the summary has no verdict:\n%s", text)
	}
	records := withEvent(receiver.Logs(), otlp.EventVerdict)
	if len(records) != 1 {
		t.Fatalf("%d log records\n%s", len(records), j.report())
	}
	a := records[0].record.Attributes().AsRaw()
	for key, v := range map[string]any{
		"heapwire.verdict.kind": "rounding", "heapwire.verdict.requested": float64(requested), "heapwire.verdict.got": float64(got),
		"memory_kind": "pinned", "device": "cpu", "heapwire.reason": "api", "code.function.name": "stage", "code.file.path": filepath.Join(here, program), "code.line.number": line,
	} {
		if a[key] != v {
			t.Errorf("log record: %s is %v, want %v", key, a[key], v)
		}
	}
	points := pointsOf(receiver.Metrics())
	for key, n := range map[string]int64{
		"heapwire.device.memory.requested cpu": requested, "heapwire.device.memory.active cpu": got,
		"heapwire.device.memory.stats.active_bytes.current cpu": got, "heapwire.device.memory.stats.allocated_bytes.current cpu": got, "heapwire.device.memory.stats.num_host_alloc cpu": 21,
	} {
		if !slices.Equal(points[key], []int64{n}) {
			t.Errorf("metric %s: %v, want one point of %d", key, points[key], n)
		}
	}
}

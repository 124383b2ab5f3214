// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/symbol"
)

// giantThreshold is HEAPWIRE_GIANT in these tests, above every good message.
const giantThreshold = "HEAPWIRE_GIANT=1GiB"

// giantJob starts the server, with nothing else to set a dump off, and waits for what it claims.
func giantJob(t *testing.T, py python, threshold string, args ...string) (j *job, spool string, told truth) {
	t.Helper()
	spool = filepath.Join(t.TempDir(), "spool")
	truth := filepath.Join(t.TempDir(), "truth")
	program := filepath.Join(here, "giant_allocation/giant_allocation.py")
	j = startPreloaded(t, spool, []string{"HEAPWIRE_INTERVAL=0", "HEAPWIRE_PRESSURE=off", "HEAPWIRE_PSI=0", "HEAPWIRE_JUMP=off", threshold},
		append([]string{py.Path, program, "--hold", "--truth", truth}, args...)...)
	j.truth = truth
	return j, spool, j.truths()[0]
}

// dumps reads all dumps of a spool, in the order in which they were taken.
func dumps(t *testing.T, spool string) []*convert.Heap {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(spool, "*", "*.heap"))
	if err != nil {
		t.Fatal(err)
	}
	var heaps []*convert.Heap
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		h, err := convert.HeapDump(f, convert.Options{Name: filepath.Base(path), Symbols: &symbol.Resolver{}})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		heaps = append(heaps, h)
	}
	return heaps
}

// One absurd length off the wire: while the server waits for what will never come, a dump names who asked for how much.
func TestAGiantRequestIsNamedBeforeItsPagesAreTouched(t *testing.T) {
	for _, py := range findPythons(t, python.Supported) {
		t.Run(py.String(), func(t *testing.T) {
			t.Parallel()
			checkGiant(t, py)
		})
	}
}

// 962174058496 is what a port scan once made a server ask for; 2^60 is more than the address space has, so it is refused.
func TestAGiantRequestIsNamedWhetherGrantedOrRefused(t *testing.T) {
	py := onePython(t)
	for _, claim := range []string{"962174058496", "1152921504606846976"} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			checkGiant(t, py, "--claim", claim)
		})
	}
}

func checkGiant(t *testing.T, py python, args ...string) {
	j, spool, told := giantJob(t, py, giantThreshold, args...)
	j.until("there is a dump of the giant request", func() (bool, error) {
		paths, err := filepath.Glob(filepath.Join(spool, "*", "*.giant.heap"))
		return len(paths) > 0, err
	})
	held := dumps(t, spool)
	if len(held) != 1 {
		t.Fatalf("%d dumps while the server waits, want the one of the request", len(held))
	}
	h := held[0]
	want := told.Sites["message"].BlockBytes
	m := h.Meta
	if m.Reason != "giant" || m.Trigger != "request of "+strconv.FormatInt(want, 10) || m.Figures["giant_requests"] != 1 || m.Raw["giant_lost"] != "0" {
		t.Errorf("reason %q, trigger %q, giant_requests %s, giant_lost %s", m.Reason, m.Trigger, m.Raw["giant_requests"], m.Raw["giant_lost"])
	}
	if rss, ok := m.Figure("rss"); !ok || rss >= 200<<20 {
		t.Errorf("%.0f MiB resident (known: %v), want less than 200: nothing was touched", mib(rss), ok)
	}
	if len(h.Giants) != 1 {
		t.Fatalf("%d giant requests, want 1", len(h.Giants))
	}
	g := h.Giants[0]
	if g.Bytes != uint64(want) || g.Call != "malloc" {
		t.Errorf("%d bytes by %s, want %d by malloc", g.Bytes, g.Call, want)
	}
	if g.TID == int64(told.PID) || g.TID <= 0 {
		t.Errorf("thread %d of process %d: want the server's", g.TID, told.PID)
	}
	if g.Time.After(m.Time) || g.Time.Before(m.Time.Add(-m.Interval)) {
		t.Errorf("asked at %v, the dump is of %v", g.Time, m.Time)
	}
	checkGiantStack(t, g.Stack)
	line := g.Line()
	t.Logf("%s: %s; %.0f MiB resident", py, line, mib(m.Figures["rss"]))
	at := markedPlaces(t, filepath.Join(here, "giant_allocation/giant_allocation.py"))["message"]
	if text := " at read_message giant_allocation.py:" + strconv.FormatInt(at.line, 10) + " < serve giant_allocation.py:"; !strings.Contains(line, text) {
		t.Errorf("%q does not say %q", line, text)
	}

	j.succeed()
	if got := j.stderr.String(); got != "" {
		t.Errorf("stderr: %s", got)
	}
	later := dumps(t, spool)[1:]
	if len(later) != 1 {
		t.Errorf("%d dumps after that of the request, want the one of the exit", len(later))
	}
	for _, h := range later {
		if h.Meta.Reason != "exit" || len(h.Giants) != 0 || h.Meta.Figures["giant_requests"] != 1 {
			t.Errorf("a dump of reason %q tells of %d giant requests, %s since start: want it told once", h.Meta.Reason, len(h.Giants), h.Meta.Raw["giant_requests"])
		}
	}
}

// checkGiantStack demands the marked line as the innermost Python frame, its caller's frames, and none of the allocator.
func checkGiantStack(t *testing.T, locations []*profile.Location) {
	t.Helper()
	program := filepath.Join(here, "giant_allocation/giant_allocation.py")
	at := markedPlaces(t, program)["message"]
	s := &profile.Sample{Location: locations}
	f, ok := innermostPython(s)
	if want := (frame{at.function, program, at.line}); !ok || f != want {
		t.Errorf("asked by %+v, want %+v, in %v", f, want, frames(s))
	}
	if missing := notCalled(s, []string{"serve"}); len(missing) > 0 {
		t.Errorf("callers %v are missing in %v", missing, frames(s))
	}
	if m := locations[0].Mapping; m == nil || strings.HasPrefix(stack.BaseName(m.File), "libheapwire") {
		t.Errorf("the stack begins with %s", stack.Short(locations[0]))
	}
}

// The control: switched off, or with a threshold above it, the same request is nothing special.
func TestWhatIsNoGiantRequestSetsNothingOff(t *testing.T) {
	py := onePython(t)
	for name, threshold := range map[string]string{"off": "HEAPWIRE_GIANT=0", "above": "HEAPWIRE_GIANT=16GiB"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, spool, _ := giantJob(t, py, threshold)
			j.succeed()
			found := dumps(t, spool)
			if len(found) == 0 {
				t.Error("no dump at all, not even of the exit")
			}
			for _, h := range found {
				if h.Meta.Reason == "giant" || len(h.Giants) > 0 || h.Meta.Figures["giant_requests"] > 0 {
					t.Errorf("a dump of reason %q with %d giant requests", h.Meta.Reason, len(h.Giants))
				}
			}
		})
	}
}

// What a person sees: told while the job runs, and again in the summary.
func TestRunTellsOfAGiantRequest(t *testing.T) {
	py := onePython(t)
	j := startRun(t, []string{giantThreshold}, []string{"--interval", "0"}, py.Path, filepath.Join(here, "giant_allocation/giant_allocation.py"))
	j.succeed()
	told := strings.Count(j.stderr.String(), "request of 8.0 GiB by ")
	if told != 2 || strings.Count(j.stderr.String(), " at read_message giant_allocation.py:") != 2 {
		t.Errorf("told %d times, want twice, with function and file:\n%s", told, j.report())
	}
}

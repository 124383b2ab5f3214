// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/jemalloc/dumpgen"
	"github.com/heapwire/heapwire/exporter/otlp/otlptest"
	"github.com/heapwire/heapwire/exporter/pyroscope/pyroscopetest"
)

// deployed is one deployment of a service: where it lies, where its functions begin, and what its dumps hold at the line that
// keeps requests, in blocks; a second process does the same.
type deployed struct {
	version, root string
	moved         int
	kept          []uint64
	figures       []dumpgen.Pair
}

const keptLine = 41

// write makes the process folders that the shim would have made.
func (d deployed) write(t *testing.T, spool string) {
	t.Helper()
	began := time.Now().Add(-10 * time.Minute)
	for pid := 100; pid < 102; pid++ {
		folder := filepath.Join(spool, fmt.Sprintf("node7-%d-8000", pid))
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		process := fmt.Sprintf(`{"schema":1,"host":"node7","pid":%d,"start_ticks":8000,"service_name":"scheduler","resource_attributes":"service.version=%s","variables":{"RANK":"%d"}}`,
			pid, d.version, pid-100)
		if err := os.WriteFile(filepath.Join(folder, "process.json"), []byte(process), 0o600); err != nil {
			t.Fatal(err)
		}
		for i, kept := range d.kept {
			stack := func(id uint32, line int, blocks uint64) dumpgen.Stack {
				return dumpgen.Stack{Frames: []uint64{dumpgen.Token(id, line), dumpgen.Token(3, 300+d.moved)}, Objects: blocks, Bytes: blocks * blockBytes}
			}
			at := began.Add(time.Duration(i) * time.Minute)
			dump := dumpgen.Dump{
				SampleBytes: 512 << 10, Threads: []string{""}, Stacks: []dumpgen.Stack{stack(1, keptLine+d.moved, kept), stack(2, 99, 4)},
				Meta: append([]dumpgen.Pair{
					{Key: "seq", Value: fmt.Sprint(i + 1)}, {Key: "reason", Value: "interval"}, {Key: "time_unix_nano", Value: fmt.Sprint(at.UnixNano())},
					{Key: "interval_ns", Value: "60000000000"}, {Key: "step", Value: fmt.Sprint(10 * i)},
				}, d.figures...),
				Functions: []dumpgen.Function{
					{ID: 1, Name: "Scheduler.add_request", File: d.root + "/service/scheduler.py", Line: 40 + d.moved},
					{ID: 2, Name: "load", File: "/opt/" + d.version + "/lib/python3.11/site-packages/model/weights.py", Line: 90},
					{ID: 3, Name: "serve", File: d.root + "/service/scheduler.py", Line: 290 + d.moved},
				},
			}
			f, err := os.Create(filepath.Join(folder, fmt.Sprintf("%06d.interval.heap", i+1)))
			if err != nil {
				t.Fatal(err)
			}
			if err := dump.Write(f); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
	}
}

var (
	before = deployed{version: "1.0", root: "/srv/scheduler-1.0", kept: []uint64{1, 2, 1, 2}}
	after  = deployed{version: "1.1", root: "/srv/scheduler-1.1", moved: 7, kept: []uint64{3, 4, 4, 5, 6, 8}}
)

// change is how much more the mean snapshot of the second deployment keeps.
const change = (5 - 1.5) * blockBytes

type diffOut struct {
	Base, Head struct {
		Snapshots int
		Live      float64
	}
	Delta, Error float64
	Lines        []struct {
		Change, Function, File   string
		Line                     int
		BaseLine                 int `json:"base_line"`
		Delta, Error, Base, Head float64
	}
}

// Two deployments of a service, as folders and as what was pushed to a Pyroscope: the changed line is named, though it has moved
// to another line of another folder, with its bytes.
func TestDiffNamesTheChangedLine(t *testing.T) {
	server := pyroscopetest.Start()
	defer server.Close()
	c := newCall(t)
	before.write(t, filepath.Join(c.dir, "before"))
	after.write(t, filepath.Join(c.dir, "after"))
	for _, side := range []string{"before", "after"} {
		if status := c.do(t, "push", "--pyroscope", server.URL, side); status != 0 {
			t.Fatalf("pushing: status %d: %s", status, &c.stderr)
		}
	}
	host := strings.TrimPrefix(server.URL, "http://")
	asked := func(version string) string {
		return "pyroscope://" + host + "/?service_name=scheduler&service_version=" + version + "&from=now-30m&to=now"
	}
	for _, sides := range [][2]string{{"before", "after"}, {asked("1.0"), asked("1.1")}, {"before", asked("1.1")}} {
		if status := c.do(t, "diff", "--format", "json", sides[0], sides[1]); status != 0 {
			t.Fatalf("%v: status %d: %s", sides, status, &c.stderr)
		}
		var out diffOut
		if err := json.Unmarshal(c.stdout.Bytes(), &out); err != nil {
			t.Fatalf("%v: %v\n%s", sides, err, &c.stdout)
		}
		if out.Base.Snapshots != 8 || out.Head.Snapshots != 12 || len(out.Lines) != 2 {
			t.Fatalf("%v: %+v", sides, out)
		}
		l := out.Lines[0]
		if l.Change != "grown" || l.Function != "Scheduler.add_request" || l.File != "/srv/scheduler-1.1/service/scheduler.py" || l.Line != keptLine+7 || l.BaseLine != keptLine ||
			math.Abs(l.Delta-change) > 0.1*change || math.Abs(out.Delta-change) > 0.1*change {
			t.Errorf("%v: %+v, want %v more", sides, out, change)
		}
		if same := out.Lines[1]; same.Change != "same" || same.Function != "load" || same.Delta != 0 {
			t.Errorf("%v: %+v", sides, same)
		}
		if status := c.do(t, "diff", sides[0], sides[1]); status != 0 || !strings.Contains(c.stdout.String(), "+224.0 MiB") ||
			!strings.Contains(c.stdout.String(), "Scheduler.add_request /srv/scheduler-1.1/service/scheduler.py:48 (line 41 in the base) < serve scheduler.py:307") {
			t.Errorf("%v: status %d:\n%s%s", sides, status, &c.stdout, &c.stderr)
		}
	}
	if status := c.do(t, "diff", "--format", "folded", "before", "after"); status != 0 || !strings.Contains(c.stdout.String(),
		"serve scheduler.py;Scheduler.add_request scheduler.py 100663296 335544320\n") || strings.Count(c.stdout.String(), "\n") != 2 {
		t.Errorf("status %d:\n%s", status, &c.stdout)
	}
	if status := c.do(t, "diff", "--last", "1", "--format", "json", "before", "after"); status != 0 || !strings.Contains(c.stdout.String(), `"delta": 402653184`) {
		t.Errorf("the last of each: status %d:\n%s", status, &c.stdout)
	}
}

func TestDiffFailsOver(t *testing.T) {
	c := newCall(t)
	before.write(t, filepath.Join(c.dir, "before"))
	after.write(t, filepath.Join(c.dir, "after"))
	for _, x := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--fail-over", "50MiB", "before", "after"}, 3, "the live heap grew by 224.0 MiB, more than the 50.0 MiB"},
		{[]string{"--fail-over", "1GiB", "before", "after"}, 0, ""},
		{[]string{"--fail-over", "50MiB", "after", "before"}, 0, ""},
		{[]string{"--fail-over", "50MiB", "before", "before"}, 0, ""},
		{[]string{"--fail-over", "much", "before", "after"}, 2, "fail-over"},
		{[]string{"before"}, 2, "want two sides"},
		{[]string{"--format", "svg", "before", "after"}, 2, "want text, json, folded"},
		{[]string{"before", "nowhere"}, 1, "nowhere"},
		{[]string{"before", "tmp"}, 1, "tmp: holds no heap dump"},
		{[]string{"before", "pyroscope://127.0.0.1:1/?from=now-1h"}, 2, "want at least service_name"},
		{[]string{"before", "pyroscope://u:secret@127.0.0.1:1/?service_name=x&from=yesterday"}, 2, "pyroscope://127.0.0.1:1/?service_name=x&from=yesterday: from=yesterday: want RFC 3339"},
		{[]string{"before", "pyroscope://127.0.0.1:1/?service_name=x&from=now&to=now-1h"}, 2, "is not before"},
		{[]string{"before", "pyroscope://127.0.0.1:1/?service_name=x"}, 1, "refused"},
		{[]string{"--last", "2", "before", "pyroscope://127.0.0.1:1/?service_name=x"}, 2, "--last"},
	} {
		status := c.do(t, append([]string{"diff"}, x.args...)...)
		if status != x.status || !strings.Contains(c.stderr.String(), x.says) || strings.Contains(c.stderr.String(), "secret") {
			t.Errorf("%v: status %d, want %d: %s", x.args, status, x.status, &c.stderr)
		}
	}
	server := pyroscopetest.Start()
	defer server.Close()
	if status := c.do(t, "diff", "before", "pyroscope://"+strings.TrimPrefix(server.URL, "http://")+"/?service_name=nobody"); status != 1 ||
		!strings.Contains(c.stderr.String(), `{memory_kind="host",service_name="nobody",view="live"}: the server has no such profiles`) {
		t.Errorf("status %d: %s", status, &c.stderr)
	}
}

func TestGrowthOfFolders(t *testing.T) {
	c := newCall(t)
	leak := after
	leak.kept = []uint64{1, 2, 3, 4, 5}
	leak.figures = []dumpgen.Pair{{Key: "rss", Value: fmt.Sprint(1 << 30)}, {Key: "anon", Value: fmt.Sprint(900 << 20)}, {Key: "resident", Value: fmt.Sprint(500 << 20)}}
	leak.write(t, filepath.Join(c.dir, "spool"))
	before.write(t, filepath.Join(c.dir, "healthy"))
	if status := c.do(t, "growth", "spool"); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	text := c.stdout.String()
	for _, want := range []string{
		"10 dumps of 2 processes: live 640.0 MiB → 1.1 GiB",
		"node7-101-8000 (rank 1): 5 dumps in 4m0s, 320.0 MiB → 576.0 MiB",
		"leak: Scheduler.add_request scheduler.py:48 holds 256.0 MiB more than in the first of 5 dumps and goes on growing: 1.1 MiB ± 0 B a second, 6.4 MiB a step; >99.99% sure",
		"at Scheduler.add_request scheduler.py:48 < serve scheduler.py:307",
		"[node7-101-8000 (rank 1)]",
		"outside_malloc: not from malloc: 400.0 MiB of private anonymous memory",
		"+512.0 MiB",
		"in all 2 processes alike",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(text, "load weights.py") != 0 {
		t.Errorf("what does not grow is in the table:\n%s", text)
	}
	for args, status := range map[string]int{"--fail-on leak spool": 3, "--fail-on spike,leak spool": 3, "--fail-on spike spool": 0, "--fail-on leak healthy": 0, "--fail-on woe spool": 2, "--format xml spool": 2, "": 2} {
		if got := c.do(t, append([]string{"growth"}, strings.Fields(args)...)...); got != status {
			t.Errorf("growth %s: status %d, want %d: %s", args, got, status, &c.stderr)
		}
	}
	var out struct {
		Dumps    int
		Verdicts []struct {
			Kind, Process string
			Bytes         int64
			Numbers       map[string]float64
			Stack         []string
		}
		Growth []struct {
			Grew  int64
			Shape string
			Stack []string
		}
	}
	if status := c.do(t, "growth", "--format", "json", "spool"); status != 0 {
		t.Fatal(c.stderr.String())
	}
	if err := json.Unmarshal(c.stdout.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	if v := out.Verdicts[0]; out.Dumps != 10 || len(out.Verdicts) != 4 || v.Kind != "leak" || v.Bytes != 256<<20 || v.Numbers["growth_per_step"] != 6.4*(1<<20) ||
		v.Stack[0] != "Scheduler.add_request /srv/scheduler-1.1/service/scheduler.py:48" || out.Growth[0].Grew != 512<<20 || out.Growth[0].Shape != "growing" {
		t.Errorf("%s", &c.stdout)
	}
}

// What jemalloc itself calls its dumps, a bad one among them.
func TestGrowthOfPlainFiles(t *testing.T) {
	c := newCall(t)
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(c.dir, fmt.Sprintf("jeprof.7.%d.i%d.heap", i, i)), dump(t, uint64(i+1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, "jeprof.7.3.i3.heap"), []byte("heap_v2/x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status := c.do(t, "growth", "."); status != 0 || !strings.Contains(c.stdout.String(), "3 dumps of 1 process") || !strings.Contains(c.stdout.String(), "leak: Cache.leak app.py:12") ||
		!strings.Contains(c.stderr.String(), "jeprof.7.3.i3.heap") || !strings.Contains(c.stderr.String(), "left out") {
		t.Errorf("status %d:\n%s%s", status, &c.stdout, &c.stderr)
	}
	if status := c.do(t, "growth", "jeprof.7.3.i3.heap"); status != 1 {
		t.Errorf("status %d: %s", status, &c.stderr)
	}
}

// An alert on log records has the stack; a verdict is told once, however many dumps show it.
func TestRunTellsTheCollectorWhatLeaks(t *testing.T) {
	r, err := otlptest.Start(t.Context(), otlptest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown(context.Background())
	c := newCall(t, "HEAPWIRE_LIB="+library(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+r.HTTP)
	leak := after
	leak.kept = []uint64{1, 2, 3, 4}
	spool := filepath.Join(c.dir, "spool")
	leak.write(t, spool)
	if status := c.do(t, "run", "--spool", spool, "--", "true"); status != 0 {
		t.Fatalf("status %d: %s", status, &c.stderr)
	}
	told := map[string]int{}
	for _, logs := range r.Logs() {
		record := logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
		rank, _ := logs.ResourceLogs().At(0).Resource().Attributes().Get("heapwire.rank")
		got := record.Attributes().AsRaw()
		if record.EventName() != "heapwire.verdict" {
			continue // of their deaths
		}
		told[rank.AsString()]++
		if got["heapwire.verdict.kind"] != "leak" || got["code.function.name"] != "Scheduler.add_request" || got["code.line.number"] != int64(48) ||
			got["heapwire.seq"] != int64(3) || !strings.Contains(fmt.Sprint(got["code.stacktrace"]), "serve /srv/scheduler-1.1/service/scheduler.py:307") {
			t.Errorf("attributes %v", got)
		}
	}
	if told["0"] != 1 || told["1"] != 1 {
		t.Errorf("told %v, want once of each process", told)
	}
}

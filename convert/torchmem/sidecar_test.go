// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

const fullSidecar = `{
 "schema": 1, "reason": "oom", "device_kind": "cuda", "device": "cuda:0", "time_unix_nano": 1764400000000000000,
 "requested_bytes": 5304745984, "free_bytes": 0, "total_bytes": 85899345920, "limit_bytes": 42949672960, "oom_count": 3, "skipped": 1,
 "after_unwinding": true, "rank": 0, "step": 12, "window": "steps10-12", "thread": "MainThread",
 "python_stack": ["Model.forward /srv/a b/model.py:41", "<module> C:\\train.py:7", "odd"],
 "memory_stats": {"cuda:0": {"num_alloc_retries": 4, "num_ooms": 3, "allocated_bytes.all.peak": 77, "requested_bytes.all.current": 70, "active.all.current": 2,
   "reserved_bytes.all.current": 100, "active_bytes.all.current": 80, "ratio": 0.5}, "cuda:1": {"num_ooms": 0}},
 "history": {"enabled": true, "by": "heapwire", "max_entries": 100000, "overflowed": true, "entries": {"cuda:0": 5}},
 "allocator_settings": "expandable_segments:True", "torch_version": "2.6.0", "something_new": [1]}`

func TestParseSidecar(t *testing.T) {
	s, err := torchmem.ParseSidecar([]byte(fullSidecar))
	if err != nil {
		t.Fatal(err)
	}
	want := torchmem.Sidecar{
		Schema: 1, Reason: "oom", DeviceKind: "cuda", Device: "cuda:0", Time: time.Unix(1764400000, 0).UTC(), Requested: 5304745984, Free: 0,
		Total: 80 << 30, Limit: 40 << 30, OOMCount: 3, Skipped: 1, AfterUnwinding: true, Rank: 0, Step: 12, Window: "steps10-12", Thread: "MainThread",
		PythonStack: []torchmem.Frame{
			{Name: "Model.forward", File: "/srv/a b/model.py", Line: 41, Python: true}, {Name: "<module>", File: `C:\train.py`, Line: 7, Python: true},
			{Name: "odd", Python: true},
		},
		MemoryStats: s.MemoryStats, Overflowed: true, MaxEntries: 100000, AllocConf: "expandable_segments:True", TorchVersion: "2.6.0",
	}
	if got, want := fmt.Sprintf("%+v", *s), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if len(s.MemoryStats) != 2 || s.MemoryStats["cuda:0"]["num_alloc_retries"] != 4 || len(s.MemoryStats["cuda:0"]) != 7 {
		t.Errorf("figures %v", s.MemoryStats)
	}
	var metrics []string
	for _, m := range s.Metrics() {
		metrics = append(metrics, fmt.Sprintf("%s %s %s %d", m.Name, m.Device, m.Unit, m.Value))
	}
	for _, want := range []string{
		"heapwire.device.memory.stats.num_alloc_retries cuda:0 {retry} 4", "heapwire.device.memory.stats.num_ooms cuda:1 {error} 0",
		"heapwire.device.memory.stats.allocated_bytes.all.peak cuda:0 By 77", "hw.gpu.memory.limit cuda:0 By 85899345920",
		"hw.gpu.memory.usage cuda:0 By 85899345920",
	} {
		if !slices.Contains(metrics, want) {
			t.Errorf("no gauge %q among %q", want, metrics)
		}
	}
	o := s.OOM()
	if o == nil || o.Live != 70 || o.LiveObjects != 2 || o.Reserved != 100 || o.Inactive != 20 || o.Limit != 40<<30 || len(o.Stack) != 3 {
		t.Errorf("error %+v", o)
	}

	empty, err := torchmem.ParseSidecar([]byte(`{"schema": 9, "rank": null, "colour": "blue"}`))
	if err != nil || empty.Rank != -1 || empty.Step != -1 || empty.Free != -1 || empty.OOM() != nil || len(empty.Metrics()) != 0 {
		t.Errorf("%+v, %v", empty, err)
	}
	for text, want := range map[string]string{
		`{"reason": "oom", "step": "7", "memory_stats": {"cuda:0": 3}, "history": [], "python_stack": [1]}`: `key "step"`,
		`{"reason": "oom", "python_stack": [1], "step": {}}`:                                                `key "python_stack"`,
		`{"reason": "oom"`: "byte 16", `[]`: "want a JSON object", ``: "byte 0",
		`{"reason": "` + strings.Repeat("x", torchmem.MaxSidecar) + `"}`: "more than the 1048576 allowed",
	} {
		s, err := torchmem.ParseSidecar([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || s == nil || s.Step != -1 {
			t.Errorf("%.60q: %+v, %v; want an error with %q", text, s, err, want)
		}
		if strings.Contains(want, "key") && s.Reason != "oom" {
			t.Errorf("%s: what could be read is lost", text)
		}
	}
}

// The JSON names what the trace does not: kind of device, limit, the stack of a thread that the allocator saw no Python of.
func TestSidecarCompletesTheError(t *testing.T) {
	side, err := torchmem.ParseSidecar([]byte(fullSidecar))
	if err != nil {
		t.Fatal(err)
	}
	_, data := generate(t, snapgen.Options{OOM: true, Capacity: 8 << 30})
	d := read(t, data, torchmem.Options{Sidecar: side}).Devices[0]
	if o := d.OOMs[0]; o.Limit != 40<<30 || o.Total != 80<<30 || o.Index < 0 || o.Stack[0].String() != "forward head.py:20" || !d.WindowTruncated {
		t.Errorf("with an entry in the trace: %+v, truncated %v", o, d.WindowTruncated)
	}
	// Without stacks in the trace, the program's own is at the request.
	_, data = generate(t, snapgen.Options{OOM: true, Capacity: 8 << 30, NoContext: true})
	s := read(t, data, torchmem.Options{Sidecar: side})
	if o := s.Devices[0].OOMs[0]; len(o.Stack) != 3 || o.Stack[0].Name != "Model.forward" {
		t.Errorf("without stacks: %+v", o.Stack)
	}
	if got := requestStack(t, s); got != "[out of memory] < Model.forward < <module> < odd" {
		t.Errorf("the request is at %s", got)
	}
	// No error in the trace: it was not recorded, or came from elsewhere.
	_, data = generate(t, snapgen.Options{})
	s = read(t, data, torchmem.Options{Sidecar: side})
	d = s.Devices[0]
	if len(d.OOMs) != 1 || d.OOMCount != 1 || s.DefaultView("") != "oom" {
		t.Fatalf("no error from the JSON alone: %+v", d)
	}
	if o := d.OOMs[0]; o.Index != -1 || o.Live != d.Requested || o.Requested != side.Requested || len(o.Top) != 3 || !o.Unwound || o.Reserved != d.Reserved {
		t.Errorf("%+v", o)
	}
	if _, total := sum(view(t, s, "oom", d.Name)); total != d.Requested+side.Requested {
		t.Errorf("the view has %d bytes, want %d live and %d requested", total, d.Requested, side.Requested)
	}
	if got := requestStack(t, s); got != "[out of memory] < Model.forward < <module> < odd" {
		t.Errorf("the request is at %s", got)
	}
	var page bytes.Buffer
	if err := s.WriteText(&page, "", 5); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"taken: oom, steps10-12, rank 0, 1 earlier errors without a snapshot of their own, PyTorch 2.6.0\n", "not among the events",
		"4.9 GiB asked for by Model.forward model.py:41", "the process may use 40.0 GiB of the device's 80.0 GiB",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, &page)
		}
	}
	// Of another device, or of no error: nothing is added.
	other := *side
	other.Device = "cuda:7"
	if s := read(t, data, torchmem.Options{Sidecar: &other}); len(s.Devices[0].OOMs) != 0 {
		t.Error("an error of another device")
	}
	other = *side
	other.Reason, other.DeviceKind = "window", "npu"
	if s := read(t, data, torchmem.Options{Sidecar: &other}); len(s.Devices[0].OOMs) != 0 || s.Devices[0].Name != "npu:0" {
		t.Errorf("%+v", s.Devices[0])
	}
}

// requestStack is the stack of the request that failed, without files.
func requestStack(t *testing.T, s *torchmem.Snapshot) string {
	t.Helper()
	for _, sample := range view(t, s, "oom", "").Sample {
		if sample.Location[0].Line[0].Function.Name != torchmem.OOMRequest {
			continue
		}
		var names []string
		for _, l := range sample.Location {
			names = append(names, l.Line[0].Function.Name)
		}
		return strings.Join(names, " < ")
	}
	return ""
}

func TestParseFileName(t *testing.T) {
	none := torchmem.FileName{Rank: -1, PID: -1, Step: -1}
	for path, want := range map[string]torchmem.FileName{
		"/x/step4/torch_memory_rank0_pid4242.pickle":        {Rank: 0, PID: 4242, Step: 4, Reason: "window"},
		"/x/steps4-5/torch_memory_rank13_pid4242.pickle.gz": {Rank: 13, PID: 4242, Step: 5, Window: "steps4-5", Reason: "window"},
		"oom_20260908-101112-123456/torch_memory_oom_rank3_pid7.pickle": {
			Rank: 3, PID: 7, Step: -1, Reason: "oom", Time: time.Date(2026, 9, 8, 10, 11, 12, 123456000, time.Local),
		},
		"oom_snapshot_4242_20260908101112.pickle": {
			Kind: "npu", Rank: -1, PID: 4242, Step: -1, Reason: "oom", Time: time.Date(2026, 9, 8, 10, 11, 12, 0, time.Local),
		},
		"/x/oom_snapshot.pickle": none, "snapshot.pkl": none, "": none, "/": none, "step4": none,
		"oom_snapshot_4242_20269908101112.pickle":           {Kind: "npu", Rank: -1, PID: 4242, Step: -1, Reason: "oom"},
		"/x/step99999999999999999999/t_rank0_pid1.pickle":   {Rank: 0, PID: 1, Step: -1},
		"/x/step4/checkpoint.pickle":                        {Rank: -1, PID: -1, Step: 4, Reason: "window"},
		"/oom_20260908-101112-123456/step4/dump.pickle":     {Rank: -1, PID: -1, Step: 4, Reason: "window"},
		"/x/steps4-5x/torch_memory_rank0_pid4242x.pickle":   none,
		"/x/torch_memory_rank00000000000_pid4242.pickle":    none,
		"/x/torch_memory_rank-1_pid4242.pickle":             none,
		"/x/step4/torch_memory_rank0_pid4242.pickle.zst":    {Rank: 0, PID: 4242, Step: 4, Reason: "window"},
		"step4/../step5/torch_memory_oom_rank0_pid1.pickle": {Rank: 0, PID: 1, Step: 5, Reason: "window"},
	} {
		if got := torchmem.ParseFileName(path); got != want {
			t.Errorf("%s: got %+v, want %+v", path, got, want)
		}
	}
	for name, want := range map[string][2]bool{
		"a.pickle": {true, true}, "a.pkl": {true, true}, "a.pickle.gz": {false, true}, "a.pkl.zst": {false, true}, "a.json": {}, "a.pickle.tmp": {}, "pickle": {},
	} {
		if got := [2]bool{torchmem.IsFileName(name, false), torchmem.IsFileName(name, true)}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := torchmem.SidecarName("/x/000004.oom.cuda.pickle"); got != "/x/000004.oom.cuda.json" {
		t.Error(got)
	}
}

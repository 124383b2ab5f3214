// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

func TestLeakIsFoundInTheCorpus(t *testing.T) {
	dir := testdata(t)
	for name, line := range map[string]string{
		"npu-leak-expandable.pkl": "memory_leaks_demo.py:12", "npu-two-devices.pkl": "memory_leaks_demo.py:11", "npu-empty-cache.pkl": "memory_leaks_demo.py:11",
	} {
		s := readFile(t, filepath.Join(dir, name), torchmem.Options{})
		l := s.Devices[0].Leak
		if len(l.Stacks) != 1 || l.Bytes != 3*41943040 || l.Objects != 3 || l.Stacks[0].Steps != 3 || l.Stacks[0].PerStep != 41943040 {
			t.Errorf("%s: got %+v, want 3 x 41943040 bytes from 3 steps", name, l)
			continue
		}
		p := view(t, s, "leak", "")
		if objects, bytes := sum(p); objects != 3 || bytes != 125829120 || len(p.Sample) != 1 {
			t.Errorf("%s: the leak view has %d objects, %d bytes in %d samples", name, objects, bytes, len(p.Sample))
		}
		text := p.String()
		if !strings.Contains(text, "memory_leaks_demo.py") || strings.Contains(text, "adam.py") {
			t.Errorf("%s: the leak view reads\n%s", name, text)
		}
		if v := l.Verdict(); !strings.Contains(v, line) || !strings.Contains(v, "40.0 MiB a step") {
			t.Errorf("%s: verdict %q does not name %s", name, v, line)
		}
		if l.OptimizerBytes != 2*94114088 {
			t.Errorf("%s: %d bytes of optimizer state, want 2 x 94114088", name, l.OptimizerBytes)
		}
	}
}

// Optimizer state and gradients are survivors, and no leak.
func TestNoLeakIsFoundWhereThereIsNone(t *testing.T) {
	dir := testdata(t)
	for name, judged := range map[string]bool{
		"cuda26-three-steps.pickle": true, "cuda211-training.pickle": false, "cuda26-forward.pickle": true,
		"cuda211-no-python-frames.pickle": true, "cuda26-tiny.pickle": true, "synthetic-traces-first.pickle": true,
	} {
		s := readFile(t, filepath.Join(dir, name), torchmem.Options{})
		l := s.Devices[0].Leak
		if len(l.Stacks) != 0 || l.Bytes != 0 || s.Has("leak", "") {
			t.Errorf("%s: got a leak: %s", name, l.Verdict())
		}
		if name != "synthetic-traces-first.pickle" && l.Judged != judged {
			t.Errorf("%s: judged %v (%s)", name, l.Judged, l.Verdict())
		}
	}
}

func TestGeneratedLeaks(t *testing.T) {
	const leak = 3 << 20
	f := func(o snapgen.Options, from string, steps int) {
		t.Helper()
		o.Seed = 8
		_, data := generate(t, o)
		s := read(t, data, torchmem.Options{})
		l := s.Devices[0].Leak
		if l.StepsFrom != from {
			t.Errorf("%+v: steps from %s, want %s", o, l.StepsFrom, from)
		}
		if steps == 0 {
			if len(l.Stacks) > 0 {
				t.Errorf("%+v: got a leak: %s", o, l.Verdict())
			}
			return
		}
		if len(l.Stacks) != 1 || l.Stacks[0].Steps != steps || !strings.Contains(l.Verdict(), "remember leak.py:12") {
			t.Errorf("%+v: %s", o, l.Verdict())
		}
	}
	f(snapgen.Options{Leak: leak, Steps: 6}, torchmem.StepsFromAnnotations, 6)
	f(snapgen.Options{Leak: leak, Steps: 6, Form: snapgen.Form26, Whole: true}, torchmem.StepsFromAnnotations, 6)
	f(snapgen.Options{Leak: leak, Steps: 6, Form: snapgen.FormCPP}, torchmem.StepsFromAnnotations, 6)
	f(snapgen.Options{Leak: leak, Steps: 6, Form: snapgen.FormNPU}, torchmem.StepsFromDeciles, 6)
	f(snapgen.Options{Leak: leak, Steps: 6, Form: snapgen.Form24}, torchmem.StepsFromDeciles, 6)
	f(snapgen.Options{Leak: leak, Steps: 30, Form: snapgen.Form21}, torchmem.StepsFromDeciles, 10)
	// The agent's marks say step=0 to step=5; the last one may still run.
	f(snapgen.Options{Leak: leak, Steps: 6, StepMarks: true}, torchmem.StepsFromMarks, 5)
	// Two steps show nothing that recurs.
	f(snapgen.Options{Leak: leak, Steps: 2}, torchmem.StepsFromAnnotations, 0)
	f(snapgen.Options{Leak: leak, Steps: 3, StepMarks: true}, torchmem.StepsFromMarks, 0)
	// Without a leak there is none, although state, gradients and parameters survive.
	for _, form := range []string{snapgen.Form21, snapgen.Form210, snapgen.FormNPU} {
		for _, whole := range []bool{false, true} {
			o := snapgen.Options{Steps: 8, Form: form, Whole: whole}
			from := torchmem.StepsFromDeciles
			if form == snapgen.Form210 {
				from = torchmem.StepsFromAnnotations
			}
			f(o, from, 0)
		}
	}
}

// What the last step still holds is not complete: a leak of steps 1 to 3 and of the running one counts three.
func TestRunningStepDoesNotCount(t *testing.T) {
	_, data := generate(t, snapgen.Options{Leak: 1 << 20, Steps: 4, OOM: true, Capacity: 3 << 30})
	l := read(t, data, torchmem.Options{}).Devices[0].Leak
	if l.Steps != 4 || len(l.Stacks) != 1 {
		t.Errorf("got %s, want the leak alone of 4 complete steps: what the failing step holds is from one step", l.Verdict())
	}
	if !read(t, data, torchmem.Options{LeakSteps: 5}).Devices[0].Leak.Judged == false {
		t.Error("5 steps are wanted, 4 are there: not judged")
	}
}

// Without steps, what stays from one half of the window only was built there, or is still in use.
func TestDecilesOfOneHalfAreNoLeak(t *testing.T) {
	f := func(want bool, line int, at ...int) {
		t.Helper()
		var frames []any
		if line > 0 {
			frames = []any{dictOf("name", "f", "filename", "/m/model.py", "line", line)}
		}
		var events []any
		for i := range 100 {
			for _, k := range at {
				if k == i {
					events = append(events, dictOf("action", "alloc", "addr", 1<<20+i*512, "size", 100, "stream", 1, "frames", frames))
				}
			}
			events = append(events, event("alloc", 4096, 10), event("free_completed", 4096, 10))
		}
		l := read(t, snapshotOf(nil, events), torchmem.Options{}).Devices[0].Leak
		if l.StepsFrom != torchmem.StepsFromDeciles || !l.Judged || (len(l.Stacks) > 0) != want {
			t.Errorf("survivors at %v: %s", at, l.Verdict())
		}
	}
	f(true, 12, 5, 35, 65)
	f(true, 12, 5, 15, 25, 35, 45, 55, 65, 75, 85, 95)
	f(false, 12, 5, 65)
	f(false, 12, 1, 11, 21, 31, 41)
	f(false, 12, 61, 71, 81, 91)
	f(false, 12, 54, 55, 56, 57, 5, 6, 7)
	f(false, 0, 5, 35, 65) // many different allocations may have no stack
}

// A window in which nothing is freed is a program being built.
func TestDecilesOfABuildAreNotJudged(t *testing.T) {
	var events []any
	for i := range 100 {
		events = append(events, dictOf("action", "alloc", "addr", 1<<20+i*512, "size", 100, "frames", []any{dictOf("name", "f", "filename", "/m/model.py", "line", 3)}))
	}
	l := read(t, snapshotOf(nil, events), torchmem.Options{}).Devices[0].Leak
	if l.Judged || len(l.Stacks) > 0 || !strings.Contains(l.Verdict(), "not judged") {
		t.Errorf("got %s", l.Verdict())
	}
}

// The state of an optimizer is made when a parameter first has a gradient: for experts that may be in any step.
func TestOptimizerStateOfManyStepsIsNoLeak(t *testing.T) {
	for file, leak := range map[string]bool{"/opt/venv/lib/python3.11/site-packages/torch/optim/adam.py": false, `C:\env\torch\optim\adam.py`: false, "/home/me/optim/adam.py": true} {
		var events []any
		for i := range 100 {
			if i%10 == 5 {
				events = append(events, dictOf("action", "alloc", "addr", 1<<20+i*512, "size", 100,
					"frames", []any{dictOf("name", "at::zeros", "filename", "??", "line", 0), dictOf("name", "_init_group", "filename", file, "line", 174)}))
			}
			events = append(events, event("alloc", 4096, 10), event("free_completed", 4096, 10))
		}
		l := read(t, snapshotOf(nil, events), torchmem.Options{}).Devices[0].Leak
		if strings.HasPrefix(file, "C:") {
			file = "windows"
		}
		if (len(l.Stacks) > 0) != leak || (l.OptimizerBytes == 1000) == leak {
			t.Errorf("%s: %s, optimizer %d", file, l.Verdict(), l.OptimizerBytes)
		}
	}
}

// The end of a step may be written after the last event: the step is complete all the same.
func TestStepWhoseEndComesLate(t *testing.T) {
	var events, marks []any
	now := 1_783_874_600_000_000
	for step := range 3 {
		for i := range 10 {
			now += 10
			events = append(events, dictOf("action", "alloc", "addr", 1<<20+step*51200+i*512, "size", 100, "time_us", now,
				"frames", []any{dictOf("name", "f", "filename", "/m/model.py", "line", 9)}))
		}
		now += 10
		marks = append(marks, dictOf("stage", "END", "name", "Optimizer.step#Adam.step", "device", 0, "time_us", now))
	}
	data := pickled(dictOf("segments", []any{}, "device_traces", []any{events}, "external_annotations", marks))
	l := read(t, data, torchmem.Options{}).Devices[0].Leak
	if l.Steps != 3 || len(l.Stacks) != 1 || l.Stacks[0].Steps != 3 {
		t.Errorf("got %s", l.Verdict())
	}
	// Without its end the third is still running.
	data = pickled(dictOf("segments", []any{}, "device_traces", []any{events}, "external_annotations", marks[:2]))
	if l := read(t, data, torchmem.Options{}).Devices[0].Leak; l.Steps != 2 || l.Judged || len(l.Stacks) > 0 {
		t.Errorf("got %s", l.Verdict())
	}
}

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

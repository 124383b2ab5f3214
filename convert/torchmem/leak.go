// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"slices"
	"sort"
	"strings"
)

// Where steps come from.
const (
	StepsFromMarks       = "marks"       // step=N in the events' user metadata
	StepsFromAnnotations = "annotations" // Optimizer.step of external_annotations
	StepsFromDeciles     = "deciles"     // tenths of the window: no real steps
)

// Leak is what recurs: stacks that have survivors from several steps.
type Leak struct {
	StepsFrom string
	// Steps is how many complete steps the window has, 10 for deciles.
	Steps int
	// Judged tells that the window is long enough to tell a leak from what is allocated once.
	Judged         bool
	Bytes, Objects int64
	// OptimizerBytes is what survives of the optimizers' own state, which is no leak whenever it was made.
	OptimizerBytes int64
	Stacks         []LeakStack // by bytes
}

// LeakStack is one of them.
type LeakStack struct {
	StackUse
	Steps int // from how many steps survivors come
	// PerStep is Bytes / Steps.
	PerStep int64
}

// isStepMark knows the annotations that tell steps: torch/optim/optimizer.py wraps step in a record_function scope
// "Optimizer.step#<class>.step", torch.profiler names its own steps "ProfilerStep#<n>".
func isStepMark(name string) bool {
	return strings.HasPrefix(name, "Optimizer.step#") || strings.HasPrefix(name, "ProfilerStep#")
}

// stepMarks are the ends of the steps by time, ascending; nil if the file has no annotations.
type stepMarks struct{ ends []int64 }

// stepsOf takes the optimizer that steps most often, as KinetoStepTracker does. One is preferred to the profiler's own
// marks, whose names differ from step to step.
func stepsOf(r *reader) *stepMarks {
	ends := map[string][]int64{}
	for _, a := range r.annotations {
		if a.start {
			continue
		}
		name := r.m.Text(a.name)
		if strings.HasPrefix(name, "ProfilerStep#") {
			name = "ProfilerStep#"
		}
		ends[name] = append(ends[name], a.time)
	}
	if len(r.annotations) == 0 {
		return nil
	}
	names := make([]string, 0, len(ends))
	for name := range ends {
		names = append(names, name)
	}
	slices.Sort(names)
	best := &stepMarks{}
	for _, name := range names {
		if len(ends[name]) > len(best.ends) {
			best.ends = ends[name]
		}
	}
	slices.Sort(best.ends)
	return best
}

// step is the number of the step at a time; the one that still runs is len(ends).
func (s *stepMarks) step(time int64) int {
	return sort.Search(len(s.ends), func(i int) bool { return s.ends[i] >= time })
}

const deciles = 10

// workingFrees is the share of allocations that a program at work frees within the window, at least: one in two.
const workingFrees = 2

// leak finds the stacks whose survivors come from several steps. A block that is never freed is no leak by itself: the
// parameters, the optimizer's state and the gradients of the last step are not freed either. They are made once.
func (b *viewBuilder) leak(steps *stepMarks) {
	d, t := b.d, b.trace
	l := &d.Leak
	var stepOf func(*entry) int // -1: does not count
	running := int32(-1)
	for m := range t.marks {
		running = max(running, m)
	}
	switch {
	case len(t.marks) > 1:
		l.StepsFrom, l.Steps = StepsFromMarks, len(t.marks)-1
		stepOf = func(e *entry) int {
			if e.mark == running {
				return -1
			}
			return int(e.mark)
		}
	case steps != nil && t.lastTime > 0:
		l.StepsFrom = StepsFromAnnotations
		l.Steps = steps.step(t.lastTime + 1)
		if n := len(steps.ends); n > 0 && l.Steps < n && steps.ends[l.Steps] >= t.lastTime {
			l.Steps++ // its end was written after the last event
		}
		complete := l.Steps
		stepOf = func(e *entry) int {
			if s := steps.step(e.time); s < complete {
				return s
			}
			return -1
		}
	default:
		l.StepsFrom, l.Steps = StepsFromDeciles, deciles
		stepOf = func(e *entry) int { return int(min(int64(e.index)*deciles/max(t.events, 1), deciles-1)) }
	}
	l.Judged = l.Steps >= b.r.opts.LeakSteps
	if l.StepsFrom == StepsFromDeciles {
		// Without steps, what is built once looks like a leak while it is being built. A program at work frees about as
		// often as it allocates.
		l.Judged = t.allocs >= deciles && t.frees*workingFrees >= t.allocs
	}

	type found struct {
		steps       map[int]bool
		first, last int
	}
	stacks := map[uint32]*found{}
	t.live.all(func(e *entry) {
		s := stepOf(e)
		if s < 0 {
			return
		}
		f := stacks[e.stack]
		if f == nil {
			f = &found{steps: map[int]bool{}, first: s}
			stacks[e.stack] = f
		}
		f.steps[s] = true
		f.first, f.last = min(f.first, s), max(f.last, s)
	})
	out := rows{}
	for i := range t.uses {
		u, stack := &t.uses[i], uint32(i)
		if u.live == 0 && u.liveN == 0 {
			continue
		}
		if b.r.isOptimizerState(stack) {
			l.OptimizerBytes += u.live
			continue
		}
		f := stacks[stack]
		if !l.Judged || f == nil || len(f.steps) < b.r.opts.LeakSteps {
			continue
		}
		if l.StepsFrom == StepsFromDeciles && (stack == 0 || f.first >= deciles/2 || f.last < deciles/2) {
			// In one half of the window only: built at its start, or what the last step still holds. Allocations without a
			// stack are many different ones.
			continue
		}
		out.add(windowKey(stack), u.liveN, u.live)
		l.Bytes += u.live
		l.Objects += u.liveN
		l.Stacks = append(l.Stacks, LeakStack{
			StackUse: StackUse{Stack: b.r.rowFrames(row{rowKey: windowKey(stack)}), Bytes: u.live, Objects: u.liveN},
			Steps:    len(f.steps), PerStep: u.live / int64(len(f.steps)),
		})
	}
	slices.SortStableFunc(l.Stacks, func(x, y LeakStack) int {
		switch {
		case x.Bytes > y.Bytes:
			return -1
		case x.Bytes < y.Bytes:
			return 1
		}
		return 0
	})
	d.views["leak"] = out.list()
}

// isOptimizerState tells whether a stack's innermost Python frame is in an optimizer of PyTorch or of torch_npu. They make
// their state when a parameter first has a gradient, which may be in any step.
func (r *reader) isOptimizerState(stack uint32) bool {
	for _, id := range r.stacks.get(stack) {
		f := r.stacks.frames[id]
		file := r.m.Text(int64(f.file))
		if !isPython(file) {
			continue
		}
		file = strings.ReplaceAll(file, `\`, "/")
		return strings.Contains(file, "/torch/optim/") || strings.Contains(file, "/torch_npu/optim/")
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"math"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

func sampleIndex(t *testing.T, p *profile.Profile, name string) int {
	t.Helper()
	for i, st := range p.SampleType {
		if st.Type == name {
			return i
		}
	}
	t.Fatalf("the profile has no sample type %s: %v", name, p.SampleType)
	return 0
}

// A frame of a stack, inlined functions as frames of their own.
type frame struct {
	function, file string
	line           int64
}

func (f frame) python() bool { return strings.HasSuffix(f.file, ".py") }

// frames lists a sample's stack, innermost first.
func frames(s *profile.Sample) []frame {
	var fs []frame
	for _, loc := range s.Location {
		if len(loc.Line) == 0 {
			fs = append(fs, frame{})
		}
		for _, l := range loc.Line {
			f := frame{line: l.Line}
			if l.Function != nil {
				f.function, f.file = l.Function.Name, l.Function.Filename
			}
			fs = append(fs, f)
		}
	}
	return fs
}

// innermostPython is the Python frame that asked for the memory, if any.
func innermostPython(s *profile.Sample) (frame, bool) {
	for _, f := range frames(s) {
		if f.python() {
			return f, true
		}
	}
	return frame{}, false
}

// live sums the live bytes of the samples for which keep holds.
func live(t *testing.T, p *profile.Profile, keep func(*profile.Sample) bool) int64 {
	t.Helper()
	space := sampleIndex(t, p, "inuse_space")
	var sum int64
	for _, s := range p.Sample {
		if keep(s) {
			sum += s.Value[space]
		}
	}
	return sum
}

func liveAt(t *testing.T, p *profile.Profile, program string, line int64) int64 {
	t.Helper()
	return live(t, p, func(s *profile.Sample) bool {
		f, ok := innermostPython(s)
		return ok && f.file == program && f.line == line
	})
}

// near tells whether got is within 15 % of want; nothing wanted means next to nothing got.
func near(got, want int64) bool {
	if want == 0 {
		return got < 1<<20
	}
	return math.Abs(float64(got-want)) <= 0.15*float64(want)
}

func calls(s *profile.Sample, function string) bool {
	for _, f := range frames(s) {
		if f.function == function {
			return true
		}
	}
	return false
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// checkSites compares one process's profile with its truth at every marked place of the program: the bytes, and the name
// of the function. A marker the process says nothing about must hold nothing.
func checkSites(t *testing.T, py python, p *profile.Profile, program string, told truth) {
	t.Helper()
	for name, at := range markedPlaces(t, program) {
		want := told.Sites[name].bytes()
		got := liveAt(t, p, program, at.line)
		if !near(got, want) {
			t.Errorf("process %d, %s, %s line %d: %.2f MiB, truth %.2f MiB", told.PID, name, at.function, at.line, mib(got), mib(want))
		} else if want > 0 {
			t.Logf("%s %s: %.2f MiB, truth %.2f (%+.1f %%)", py, name, mib(got), mib(want), 100*float64(got-want)/float64(want))
		}
		function := at.function
		if !py.Qualified() {
			function = at.bare()
		}
		for _, s := range p.Sample {
			if f, ok := innermostPython(s); ok && f.file == program && f.line == at.line && f.function != function {
				t.Errorf("%s: line %d is said to be in %q, want %q", name, at.line, f.function, function)
				break
			}
		}
	}
}

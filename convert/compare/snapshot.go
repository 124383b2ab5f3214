// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

const (
	// MaxStacks bounds the stacks remembered of one profile, largest first. A stack below counts as 0, so that the growth of
	// one that comes up from below is told too large by at most the smallest value remembered.
	MaxStacks = 1024
	// maxFrames bounds the frames remembered of a stack on each side of the line it is charged to.
	maxFrames = 16
)

// Held is what a stack holds.
type Held struct{ Bytes, Objects int64 }

// Named are the frames of a stack: from the line it is charged to outwards, and from there inwards.
type Named struct{ Frames, Callees []stack.Frame }

// Snapshot is one profile, as much of it as comparisons remember.
type Snapshot struct {
	Time    time.Time // zero if not known
	Seq     uint64
	Reason  string
	Step    int64   // -1 if nothing counts them
	Rate    float64 // mean bytes between samples; 1 and less: nothing is an estimate
	Live    Held
	Stacks  map[uint64]Held
	Names   map[uint64]Named
	Figures map[string]int64 // of HEAPWIRE_META; may be nil
}

// SnapshotOf remembers a profile's largest stacks. Time and rate are the profile's own, there is no step.
func SnapshotOf(p *profile.Profile) Snapshot {
	s := Snapshot{Step: -1, Rate: Rate(p), Stacks: map[uint64]Held{}, Names: map[uint64]Named{}}
	if p.TimeNanos != 0 {
		s.Time = time.Unix(0, p.TimeNanos)
	}
	space, objects := column(p, "inuse_space"), column(p, "inuse_objects")
	for _, sample := range p.Sample {
		if space >= 0 {
			s.Live.Bytes += sample.Value[space]
		}
		if objects >= 0 {
			s.Live.Objects += sample.Value[objects]
		}
	}
	for _, row := range stack.Stacks(p, "inuse_space", MaxStacks) {
		key := keyOf(row.Frames[row.Charged:])
		held := s.Stacks[key]
		held.Bytes += row.Value
		held.Objects += row.Objects
		s.Stacks[key] = held
		if _, ok := s.Names[key]; ok {
			continue
		}
		// Stacks come largest first: the callees are those of the largest.
		outwards, inwards := row.Frames[row.Charged:], slices.Clone(row.Frames[:row.Charged])
		slices.Reverse(inwards)
		s.Names[key] = Named{Frames: slices.Clone(outwards[:min(len(outwards), maxFrames)]), Callees: inwards[:min(len(inwards), maxFrames)]}
	}
	return s
}

// Rate is the mean number of bytes between the samples of a profile, if its period says so.
func Rate(p *profile.Profile) float64 {
	if p.PeriodType != nil && p.PeriodType.Type == "space" && p.PeriodType.Unit == "bytes" {
		return float64(p.Period)
	}
	return 1
}

// keyOf identifies a stack by the line charged and its callers. What that line called natively is left out: a list that
// grows and a list that is made are the same line's doing.
func keyOf(frames []stack.Frame) uint64 {
	h := fnv.New64a()
	for _, f := range frames {
		h.Write([]byte(f.Function))
		h.Write([]byte{0})
		h.Write([]byte(f.File))
		h.Write([]byte{0, byte(f.Line), byte(f.Line >> 8), byte(f.Line >> 16), byte(f.Line >> 24)})
	}
	return h.Sum64()
}

func column(p *profile.Profile, sampleType string) int {
	return slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == sampleType })
}

// Place is the line that a stack is charged to: "function file:line".
func (n Named) Place() string {
	if len(n.Frames) == 0 {
		return stack.NoStack
	}
	return n.Frames[0].String()
}

// String is the line charged, with the first frame it called natively that is not the interpreter's, and its first Python
// callers, or native ones where there is no Python.
func (n Named) String() string { return n.Text(stack.Frame.String) }

// Text is String with the line charged as place has it.
func (n Named) Text(place func(stack.Frame) string) string {
	if len(n.Frames) == 0 {
		return stack.NoStack
	}
	const most = 3
	var b strings.Builder
	shown := 0
	for i, f := range n.Frames {
		if i > 0 && f.Python != n.Frames[0].Python {
			continue
		}
		if shown == most {
			break
		}
		shown++
		if i > 0 {
			b.WriteString(" < " + f.String())
			continue
		}
		b.WriteString(place(f))
		if at := slices.IndexFunc(n.Callees, func(f stack.Frame) bool { return !interpreter(f) }); at >= 0 {
			b.WriteString(" (in " + n.Callees[at].String() + ")")
		}
	}
	return b.String()
}

// interpreter says whether a native frame is Python's own machinery, ctypes' included, which says nothing about the program.
func interpreter(f stack.Frame) bool {
	name := stack.BaseName(f.File)
	return slices.ContainsFunc([]string{"python", "libpython", "_ctypes", "libffi"}, func(own string) bool { return strings.HasPrefix(name, own) })
}

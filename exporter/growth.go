// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter/sink"
)

// maxStacks bounds the stacks remembered of one profile, largest first. A stack below it counts as 0, so that the growth
// of one that comes up from below is told too large by at most the smallest value remembered.
const maxStacks = 4096

// Process is what the pipeline saw of one process.
type Process struct {
	Folder   string // name of the process folder
	Identity sink.Identity
	Dumps    int       // dumps converted
	Last     time.Time // when the last of them was taken
	Reason   string    // of the last dump
	Live     int64     // live heap at the last dump before the interpreter freed what it held, bytes
	Left     string    // why the folder is left in the spool; "" if it was removed
}

// Growth is a stack that held more at a process's last dump than at its first, in bytes.
type Growth struct {
	Folder      string
	Frames      []stack.Frame // the line charged first, then its callers
	Callees     []stack.Frame // what that line called natively, nearest first
	First, Last int64

	steady int64 // the least it held in the last dumps, less what it held in the first
}

// Bytes is what the stack grew by.
func (g Growth) Bytes() int64 { return g.Last - g.First }

// recent is how many of the last dumps a stack must have held more in than in the first to count as grown. What comes
// and goes, such as a cache, is at a height in some dump only.
const recent = 4

// history remembers the first profile of a process and its last ones as sums by stack.
type history struct {
	first  map[uint64]int64
	last   []map[uint64]int64 // oldest first, at most recent, without the first
	frames map[uint64]stack.StackRow
}

// snapshot is one profile, as much of it as history remembers.
type snapshot struct {
	live   int64
	sums   map[uint64]int64
	frames map[uint64]stack.StackRow
}

func snapshotOf(p *profile.Profile) snapshot {
	s := snapshot{live: total(p, "inuse_space"), sums: map[uint64]int64{}, frames: map[uint64]stack.StackRow{}}
	for _, row := range stack.Stacks(p, "inuse_space", maxStacks) {
		key := stackKey(row)
		s.sums[key] += row.Value
		if _, ok := s.frames[key]; !ok {
			s.frames[key] = row
		}
	}
	return s
}

func (h *history) add(s snapshot) {
	h.frames = s.frames
	if h.first == nil {
		h.first = s.sums
		return
	}
	if len(h.last) == recent {
		h.last = slices.Delete(h.last, 0, 1)
	}
	h.last = append(h.last, s.sums)
}

func (h *history) growth(folder string) []Growth {
	if len(h.last) == 0 {
		return nil
	}
	var grown []Growth
	for key, last := range h.last[len(h.last)-1] {
		first, least := h.first[key], last
		for _, sums := range h.last {
			least = min(least, sums[key])
		}
		if least <= first {
			continue
		}
		row := h.frames[key]
		g := Growth{Folder: folder, Frames: row.Frames[row.Charged:], First: first, Last: last, steady: least - first}
		g.Callees = slices.Clone(row.Frames[:row.Charged])
		slices.Reverse(g.Callees)
		grown = append(grown, g)
	}
	return grown
}

// stackKey identifies a stack by the line charged and its callers. What that line called natively is left out: a list
// that grows and a list that is made are the same line's doing.
func stackKey(row stack.StackRow) uint64 {
	h := fnv.New64a()
	for _, f := range row.Frames[row.Charged:] {
		h.Write([]byte(f.Function))
		h.Write([]byte{0})
		h.Write([]byte(f.File))
		h.Write([]byte{0, byte(f.Line), byte(f.Line >> 8), byte(f.Line >> 16), byte(f.Line >> 24)})
	}
	return h.Sum64()
}

func total(p *profile.Profile, sampleType string) int64 {
	i := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == sampleType })
	if i < 0 {
		return 0
	}
	var sum int64
	for _, s := range p.Sample {
		sum += s.Value[i]
	}
	return sum
}

func largest(grown []Growth, n int) []Growth {
	slices.SortFunc(grown, func(a, b Growth) int {
		return cmp.Or(cmp.Compare(b.steady, a.steady), cmp.Compare(b.Bytes(), a.Bytes()), cmp.Compare(a.Folder, b.Folder))
	})
	return grown[:min(n, len(grown))]
}

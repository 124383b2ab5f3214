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
	Live     int64     // live heap at the last dump, bytes
	Left     string    // why the folder is left in the spool; "" if it was removed
}

// Growth is a stack that held more at a process's last dump than at its first, in bytes.
type Growth struct {
	Folder      string
	Frames      []stack.Frame // the line charged first, then its callers
	Via         stack.Frame   // what that line called natively; zero if nothing
	First, Last int64
}

// Bytes is what the stack grew by.
func (g Growth) Bytes() int64 { return g.Last - g.First }

// history remembers the first and the last profile of a process as sums by stack.
type history struct {
	first, last map[uint64]int64
	frames      map[uint64]stack.StackRow
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
	if h.first == nil {
		h.first = s.sums
	}
	h.last, h.frames = s.sums, s.frames
}

func (h *history) growth(folder string) []Growth {
	var grown []Growth
	for key, last := range h.last {
		first := h.first[key]
		if last <= first {
			continue
		}
		row := h.frames[key]
		g := Growth{Folder: folder, Frames: row.Frames[row.Charged:], First: first, Last: last}
		if row.Charged > 0 {
			g.Via = row.Frames[row.Charged-1]
		}
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
		return cmp.Or(cmp.Compare(b.Bytes(), a.Bytes()), cmp.Compare(a.Folder, b.Folder))
	})
	return grown[:min(n, len(grown))]
}

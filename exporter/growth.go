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

const (
	// maxStacks bounds the stacks remembered of one profile, largest first. A stack below counts as 0, so that the
	// growth of one that comes up from below is told too large by at most the smallest value remembered.
	maxStacks = 1024
	// maxSpans bounds the spans of time for which the least that a stack held is remembered.
	maxSpans = 8
	// maxNames bounds the stacks whose frames are remembered, over all processes, which mostly run the same program.
	maxNames = 1 << 16
	// maxGiants bounds the huge requests remembered of a process.
	maxGiants = 16

	// maxOOMs bounds the errors of devices remembered of a process.
	maxOOMs = 16
	// maxFrames bounds the frames remembered of a stack on each side of the line it is charged to.
	maxFrames = 16
)

// Process is what the pipeline saw of one process.
type Process struct {
	Folder   string // name of the process folder
	Identity sink.Identity
	Dumps    int       // dumps found
	Last     time.Time // when the last one converted was taken
	Reason   string    // of the last dump
	Live     int64     // live heap at the last dump, bytes
	Giants   []string  // single huge requests, the first maxGiants, a line each
	OOMs     []string  // errors of devices that ran out of memory, the first maxOOMs, a line each
	Left     string    // why the folder is left in the spool; "" if it was removed

	// Snapshots is the folder, where it is none of a process but one of Config.Folders.
	Snapshots string
}

// Growth is a stack that held more at a process's last dump than at its first, or its start if it made only one. Bytes.
type Growth struct {
	Folder      string
	Frames      []stack.Frame // the line charged first, then its callers
	Callees     []stack.Frame // what that line called natively, nearest first
	First, Last int64

	steady int64 // the least it held in the second half of the dumps, less what it held in the first
}

// Bytes is what the stack grew by.
func (g Growth) Bytes() int64 { return g.Last - g.First }

// history remembers the first profile of a process, the last, and the least of spans between, as sums by stack.
type history struct {
	dumps int
	first map[uint64]int64
	last  map[uint64]int64
	spans []span
	width int // dumps in a whole span
}

// span is the least that each stack held in some dumps that follow one another.
type span struct {
	from, dumps int
	least       map[uint64]int64
}

func (s span) join(next span) span {
	joined := span{from: s.from, dumps: s.dumps + next.dumps, least: map[uint64]int64{}}
	for key, held := range s.least {
		// A stack that one of the two does not have held nothing there.
		if other := next.least[key]; other > 0 {
			joined.least[key] = min(held, other)
		}
	}
	return joined
}

// named are the frames of a stack: from the line it is charged to outwards, and from there inwards.
type named struct{ frames, callees []stack.Frame }

// snapshot is one profile, as much of it as history remembers.
type snapshot struct {
	live  int64
	sums  map[uint64]int64
	names map[uint64]named
}

func snapshotOf(p *profile.Profile) snapshot {
	s := snapshot{live: total(p, "inuse_space"), sums: map[uint64]int64{}, names: map[uint64]named{}}
	for _, row := range stack.Stacks(p, "inuse_space", maxStacks) {
		key := stackKey(row)
		s.sums[key] += row.Value
		if _, ok := s.names[key]; ok {
			continue
		}
		// Stacks come largest first: the callees are those of the largest.
		outwards, inwards := row.Frames[row.Charged:], slices.Clone(row.Frames[:row.Charged])
		slices.Reverse(inwards)
		s.names[key] = named{frames: slices.Clone(outwards[:min(len(outwards), maxFrames)]), callees: inwards[:min(len(inwards), maxFrames)]}
	}
	return s
}

func (h *history) add(sums map[uint64]int64) {
	h.last = sums
	h.dumps++
	if h.dumps == 1 {
		h.first, h.width = sums, 1
		return
	}
	next := span{from: h.dumps - 1, dumps: 1, least: sums}
	if n := len(h.spans); n > 0 && h.spans[n-1].dumps < h.width {
		h.spans[n-1] = h.spans[n-1].join(next)
		return
	}
	h.spans = append(h.spans, next)
	if len(h.spans) > maxSpans {
		h.width *= 2
		var joined []span
		for i := 0; i+1 < len(h.spans); i += 2 {
			joined = append(joined, h.spans[i].join(h.spans[i+1]))
		}
		h.spans = append(joined, h.spans[len(h.spans)-1])
	}
}

// growth gives the stacks that held more in every dump of the second half than in the first. What comes and goes, such
// as a cache, is at a height in some dumps only.
func (h *history) growth(folder string, names map[uint64]named) []Growth {
	// Of a process that made one dump, all it holds has come since its start.
	before := h.first
	if h.dumps == 1 {
		before = nil
	}
	var grown []Growth
	for key, last := range h.last {
		first, least := before[key], last
		for _, s := range h.spans {
			if s.from >= h.dumps/2 {
				least = min(least, s.least[key])
			}
		}
		if n, ok := names[key]; ok && least > first {
			grown = append(grown, Growth{
				Folder: folder, Frames: n.frames, Callees: n.callees, First: first, Last: last, steady: least - first,
			})
		}
	}
	return grown
}

func (h *history) knows(key uint64) bool {
	if _, ok := h.first[key]; ok {
		return true
	}
	if _, ok := h.last[key]; ok {
		return true
	}
	// A span has no stack that the first of its dumps does not have, but that dump may be neither first nor last.
	return slices.ContainsFunc(h.spans, func(s span) bool { _, ok := s.least[key]; return ok })
}

// remember adds a snapshot to a process's history. It is called with p.mu held.
func (p *Pipeline) remember(proc *process, s snapshot) {
	proc.history.add(s.sums)
	for key, n := range s.names {
		if _, ok := p.names[key]; !ok {
			p.names[key] = n
		}
	}
	if len(p.names) > maxNames {
		for key := range p.names {
			if !slices.ContainsFunc(p.seen, func(other *process) bool { return other.history.knows(key) }) {
				delete(p.names, key)
			}
		}
	}
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

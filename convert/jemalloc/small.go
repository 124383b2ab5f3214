// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"math"
)

// smallLine reads a line of HEAPWIRE_OBJECTS, the sampled small objects that Python's own allocator served: none of them is in
// jemalloc's stacks. "heap_v2/<bytes>" is the sampling interval of what follows; then stack records in jemalloc's own form,
// raw sums of what was sampled.
func (p *parser) smallLine(line []byte) {
	trimmed := trimLeft(line)
	switch {
	case bytes.HasPrefix(trimmed, magic):
		p.endStack()
		n, rest, ok := number(trimmed[len(magic):])
		if !ok || len(rest) > 0 || n == 0 || n > math.MaxInt64 {
			p.smallBytes = 0
			p.garbage(line)
			return
		}
		p.smallBytes = float64(n)
	case bytes.HasPrefix(trimmed, []byte("@")):
		p.stackFrames(trimmed[1:])
	case bytes.HasPrefix(trimmed, allThreads):
		p.smallCounts(trimmed)
	default:
		p.report.UnknownLines++
		p.note(unknownLine, line)
	}
}

// smallCounts adds a stack to the others: its figures are estimates by now, so that nothing tells them apart, and equal
// stacks become one sample.
func (p *parser) smallCounts(line []byte) {
	c, rest, ok := parseCounts(line[len(allThreads):])
	if !ok || len(rest) != 0 || !p.open || p.smallBytes == 0 {
		p.open = false
		p.garbage(line)
		return
	}
	p.open = false
	v, ok := estimate(c, p.smallBytes)
	if !ok {
		p.garbage(line)
		return
	}
	if len(p.frames) == 0 {
		p.report.EmptyStacks++
		p.frames = append(p.frames, p.table.id(noStack))
	}
	p.report.SmallStacks++
	p.report.SmallObjects += v[inuseObjects]
	p.report.SmallBytes += v[inuseSpace]
	p.stacks.add(entry{frames: p.arena.add(p.frames), value: v})
}

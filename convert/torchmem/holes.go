// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"cmp"
	"slices"
)

// span is a range of addresses.
type span struct {
	addr  uint64
	size  int64
	index int64 // event
	joins bool  // part of an expandable segment: what is adjacent is one range
}

func (s span) end() uint64 { return s.addr + uint64(s.size) }

type segmentEvent struct {
	span
	grows bool
}

// segmentLog keeps the last events that added or gave back memory.
type segmentLog struct {
	ring []segmentEvent
	n    int64
}

const segmentLogSize = 1 << 14

func (l *segmentLog) add(e segmentEvent) {
	if len(l.ring) < segmentLogSize {
		l.ring = append(l.ring, e)
	} else {
		l.ring[l.n%segmentLogSize] = e
	}
	l.n++
}

// since lists the events after the first n, latest first; false if some of them were not kept.
func (l *segmentLog) since(n int64) ([]segmentEvent, bool) {
	if l.n-n > int64(len(l.ring)) {
		return nil, false
	}
	var events []segmentEvent
	for i := l.n - 1; i >= n; i-- {
		events = append(events, l.ring[i%segmentLogSize])
	}
	return events, true
}

// undo turns the ranges that are reserved after some events, latest first, into those before them.
func undo(ranges []span, events []segmentEvent) []span {
	for _, e := range events {
		if e.grows {
			ranges = subtract(ranges, e.span)
		} else {
			ranges = append(ranges, e.span)
		}
	}
	return ranges
}

func subtract(ranges []span, cut span) []span {
	kept := ranges[:0:0]
	for _, r := range ranges {
		if r.end() <= cut.addr || cut.end() <= r.addr {
			kept = append(kept, r)
			continue
		}
		if r.addr < cut.addr {
			kept = append(kept, span{addr: r.addr, size: int64(cut.addr - r.addr), joins: r.joins})
		}
		if cut.end() < r.end() {
			kept = append(kept, span{addr: cut.end(), size: int64(r.end() - cut.end()), joins: r.joins})
		}
	}
	return kept
}

// largestHole is the longest part of the ranges that no block covers.
func largestHole(ranges, blocks []span) int64 {
	byAddr := func(a, b span) int { return cmp.Compare(a.addr, b.addr) }
	ranges, blocks = slices.Clone(ranges), slices.Clone(blocks)
	slices.SortFunc(ranges, byAddr)
	slices.SortFunc(blocks, byAddr)
	joined := ranges[:0]
	for _, r := range ranges {
		if n := len(joined); n > 0 && r.joins && joined[n-1].joins && joined[n-1].end() == r.addr {
			joined[n-1].size += r.size
			continue
		}
		joined = append(joined, r)
	}
	var largest int64
	b := 0
	for _, r := range joined {
		at := r.addr
		for ; b < len(blocks) && blocks[b].addr < r.end(); b++ {
			if blocks[b].end() <= at {
				continue
			}
			if blocks[b].addr > at {
				largest = max(largest, int64(blocks[b].addr-at))
			}
			at = blocks[b].end()
		}
		if at < r.end() {
			largest = max(largest, int64(r.end()-at))
		}
	}
	return largest
}

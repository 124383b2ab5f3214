// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"fmt"
	"strings"
)

// Line tells the error in a line.
func (o *OOM) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "out of memory on %s", o.Device)
	if o.Requested > 0 {
		fmt.Fprintf(&b, ": %s asked for by %s", size(o.Requested), innermost(o.Stack))
	}
	if o.Live > 0 {
		fmt.Fprintf(&b, "; %s live", size(o.Live))
	}
	if len(o.Top) > 0 {
		fmt.Fprintf(&b, ", %s of it from %s", size(o.Top[0].Bytes), innermost(o.Top[0].Stack))
	}
	return oneLine(b.String())
}

// stackUse is what a stack holds.
type stackUse struct {
	stack    uint32
	bytes, n int64
}

// oomState is a copy of the replay's state at an oom entry.
type oomState struct {
	index, time        int64
	requested, free    int64
	stack              uint32
	now, reserved      int64
	stale, staleBytes  int64
	uses               []stackUse
	live               []span
	segmentEventsSoFar int64
}

// maxCheapOOMs is how many entries are copied whatever it costs.
const maxCheapOOMs = 64

func (t *trace) oom(e *entry, index int64, opts *Options) {
	t.oomCount++
	// A program that tries again for hours writes thousands of these. Copying costs as much as there are live blocks.
	if t.oomCount > maxCheapOOMs && index-t.lastCopy < int64(t.live.n)/8 {
		return
	}
	t.lastCopy = index
	s := oomState{
		index: index, time: e.time, requested: e.size, free: int64(e.addr), stack: e.stack,
		now: t.now, reserved: t.reserved, stale: t.stale, staleBytes: t.staleBytes,
		segmentEventsSoFar: t.segments.n,
	}
	for i := range t.uses {
		if u := &t.uses[i]; u.live != 0 || u.liveN != 0 {
			s.uses = append(s.uses, stackUse{uint32(i), u.live, u.liveN})
		}
	}
	s.live = make([]span, 0, t.live.n)
	t.live.all(func(e *entry) { s.live = append(s.live, span{addr: e.addr, size: e.size}) })
	if len(t.ooms) >= opts.OOMs {
		half := opts.OOMs / 2
		copy(t.ooms[half:], t.ooms[half+1:])
		t.ooms = t.ooms[:len(t.ooms)-1]
	}
	t.ooms = append(t.ooms, s)
}

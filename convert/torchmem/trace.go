// SPDX-License-Identifier: Apache-2.0

package torchmem

// use is what a stack holds on one device while the trace is replayed.
type use struct {
	live, liveN int64
	// Changes since the last peak: at the peak it held live - since.
	since, sinceN int64
	alloc, allocN int64
	touched       bool
}

// trace replays the events of one device.
type trace struct {
	host  bool
	index int
	whole bool // its list was read to the end

	events  int64
	actions [actionsEnd - keysEnd]int64
	live    liveMap
	uses    []use
	touched []uint32 // stacks whose use changed since the last peak

	// Sums of the window, requested bytes. Frees of blocks that the window did not allocate are the stale ones.
	now, allocated, freed int64
	allocs, frees         int64
	stale, staleBytes     int64
	survivorsLost         int64 // allocations beyond Options.MaxLive, by count

	peak                    int64 // highest value of now, at least 0
	peakIndex               int64 // -1: the window never rose above its start
	peakTime                int64
	peakStale, peakStaleSum int64 // stale frees up to the peak

	firstTime, lastTime int64
	marks               map[int32]bool // steps that user metadata named

	reserved   int64 // change since the start of the window
	growths    int64
	lastGrowth growth
	segments   segmentLog
	workspace  map[uint64]int64 // address to size

	ooms     []oomState
	oomCount int64
	lastCopy int64 // event of the last oomState
	staleLog []span
	bad      badEvents
}

type badEvents struct {
	size, double int64
}

// growth is the state when a segment was added.
type growth struct {
	index, time, reserved, now, size int64
	stack                            uint32
}

// maxBytes is more than any device has. Sizes above are damage.
const maxBytes = 1 << 46

// maxSum keeps sums away from the end of int64.
const maxSum = 1 << 62

func (t *trace) use(stack uint32) *use {
	if int(stack) >= len(t.uses) {
		t.uses = append(t.uses, make([]use, max(int(stack)+1-len(t.uses), len(t.uses)))...)
	}
	return &t.uses[stack]
}

func (t *trace) change(stack uint32, bytes, n int64) *use {
	u := t.use(stack)
	u.live += bytes
	u.liveN += n
	u.since += bytes
	u.sinceN += n
	if !u.touched {
		u.touched = true
		t.touched = append(t.touched, stack)
	}
	return u
}

// apply replays one event. action is the text's number, below actionsEnd.
func (t *trace) apply(action int64, e *entry, opts *Options) {
	t.actions[action-keysEnd]++
	index := t.events
	t.events++
	if e.time != 0 {
		if t.firstTime == 0 || e.time < t.firstTime {
			t.firstTime = e.time
		}
		t.lastTime = max(t.lastTime, e.time)
	}
	switch action {
	case aAlloc, aFree, aFreeCompleted, aSegmentAlloc, aSegmentFree, aSegmentMap, aSegmentUnmap, aOOM:
		if e.size < 0 || e.size > maxBytes {
			t.bad.size++
			return
		}
	case aWorkspace:
		if t.workspace == nil {
			t.workspace = map[uint64]int64{}
		}
		if len(t.workspace) < maxWorkspaces {
			t.workspace[e.addr] = e.size
		}
		return
	default:
		return
	}
	if t.workspace != nil {
		// torch_npu writes workspace_snapshot, segment_alloc and alloc for each workspace when it dumps, before the
		// events: they did not happen then.
		if _, ok := t.workspace[e.addr]; ok && action != aOOM {
			return
		}
	}
	switch action {
	case aAlloc:
		t.alloc(e, index, opts)
	case aFree, aFreeCompleted:
		t.free(e.addr, e.size, index)
	case aOOM:
		t.oom(e, index, opts)
	default:
		t.segment(action, e, index)
	}
}

const maxWorkspaces = 1 << 16

func (t *trace) alloc(e *entry, index int64, opts *Options) {
	room, ok := t.live.room(e.addr)
	if ok {
		t.bad.double++
		t.drop(room)
		room, _ = t.live.room(e.addr)
	}
	if t.allocated > maxSum-e.size || t.live.n >= opts.MaxLive {
		t.survivorsLost++
		return
	}
	e.index = uint32(min(index, 1<<32-1))
	t.live.put(room, e)
	t.allocated += e.size
	t.allocs++
	t.now += e.size
	u := t.change(e.stack, e.size, 1)
	u.alloc += e.size
	u.allocN++
	if e.mark >= 0 {
		if t.marks == nil {
			t.marks = map[int32]bool{}
		}
		if len(t.marks) < maxMarks {
			t.marks[e.mark] = true
		}
	}
	if t.now > t.peak {
		t.peak, t.peakIndex, t.peakTime = t.now, index, e.time
		t.peakStale, t.peakStaleSum = t.stale, t.staleBytes
		for _, s := range t.touched {
			u := &t.uses[s]
			u.since, u.sinceN, u.touched = 0, 0, false
		}
		t.touched = t.touched[:0]
	}
}

const maxMarks = 1 << 16

// drop takes a block out of the live ones.
func (t *trace) drop(i int) {
	e := &t.live.slots[i]
	t.now -= e.size
	t.freed += e.size
	t.frees++
	t.change(e.stack, -e.size, -1)
	t.live.remove(i)
}

func (t *trace) free(addr uint64, size, index int64) {
	if i, ok := t.live.find(addr); ok {
		t.drop(i)
		return
	}
	if t.staleBytes > maxSum-size {
		t.bad.size++
		return
	}
	t.stale++
	t.staleBytes += size
	t.freed += size
	t.frees++
	t.now -= size
	// For the holes at an out-of-memory error: these blocks were still in place.
	if len(t.ooms) > 0 && len(t.staleLog) < maxStaleLog {
		t.staleLog = append(t.staleLog, span{addr: addr, size: size, index: index})
	}
}

const maxStaleLog = 1 << 18

func (t *trace) segment(action int64, e *entry, index int64) {
	grows := action == aSegmentAlloc || action == aSegmentMap
	if grows {
		if t.reserved > maxSum-e.size {
			t.bad.size++
			return
		}
		// The growth answers an allocation that comes next: the state before it is what did not suffice.
		t.growths++
		t.lastGrowth = growth{index: index, time: e.time, reserved: t.reserved, now: t.now, size: e.size, stack: e.stack}
		t.reserved += e.size
	} else {
		if t.reserved < -maxSum+e.size {
			t.bad.size++
			return
		}
		t.reserved -= e.size
	}
	t.segments.add(segmentEvent{
		span:  span{addr: e.addr, size: e.size, index: index, joins: action == aSegmentMap || action == aSegmentUnmap},
		grows: grows,
	})
}

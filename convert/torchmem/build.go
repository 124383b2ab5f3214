// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"cmp"
	"slices"
)

// Labels of memory whose stack nobody has, and other notes among the frames.
const (
	BeforeRecording = "[allocated before recording]" // the block was there when the recording of stacks began
	NoPythonFrames  = "[no Python frames]"           // the allocating thread ran no Python, as those of autograd
	StackLeftOut    = "[stack left out]"             // more distinct stacks than Options.MaxStacks
	EmptySegments   = "[segments without live blocks]"
	BackwardOf      = "[backward of]"      // the frames below are those of the forward operation
	OOMRequest      = "[out of memory]"    // the request that failed, at the leaf of its stack
	NoSegmentStack  = "[no segment stack]" // the segment was made before the recording, or without a stack
	holdersView     = "holders"
)

// note is a label in place of a stack, or at its leaf.
type note uint8

const (
	noNote note = iota
	noteBefore
	noteNoFrames
	noteEmptySegments
	noteOOM
	noteNoSegmentStack
)

var noteTexts = [...]string{
	noteBefore: BeforeRecording, noteNoFrames: NoPythonFrames, noteEmptySegments: EmptySegments, noteOOM: OOMRequest,
	noteNoSegmentStack: NoSegmentStack,
}

// row is a line of a view.
type row struct {
	rowKey
	objects, bytes int64
}

type rowKey struct {
	stack uint32
	pool  int32
	note  note
}

// rows adds up lines of equal keys.
type rows map[rowKey]*row

func (s rows) add(k rowKey, objects, bytes int64) {
	r := s[k]
	if r == nil {
		r = &row{rowKey: k}
		s[k] = r
	}
	r.objects += objects
	r.bytes += bytes
}

func (s rows) list() []row {
	list := make([]row, 0, len(s))
	for _, r := range s {
		if r.objects != 0 || r.bytes != 0 {
			list = append(list, *r)
		}
	}
	slices.SortFunc(list, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(b.objects, a.objects), cmp.Compare(a.stack, b.stack),
			cmp.Compare(a.note, b.note), cmp.Compare(a.pool, b.pool))
	})
	return list
}

// clone copies the rows, so that more can be added.
func (s rows) clone() rows {
	c := make(rows, len(s))
	for k, r := range s {
		copied := *r
		c[k] = &copied
	}
	return c
}

// viewBuilder works out the views of a device.
type viewBuilder struct {
	r     *reader
	d     *Device
	trace *trace
	parts *deviceParts
	kept  []*segment // without workspaces
	old   rows       // blocks that were there before the window and are live at the dump
	spans []span     // the same with their addresses
}

func windowKey(stack uint32) rowKey {
	if stack == 0 {
		return rowKey{note: noteNoFrames}
	}
	return rowKey{stack: stack}
}

func (b *viewBuilder) segmentViews() {
	d, t := b.d, b.trace
	live, rounding, pending := rows{}, rows{}, rows{}
	reserved, inactive, holders := rows{}, rows{}, rows{}
	b.old = rows{}
	for _, s := range b.parts.segments {
		if _, ok := t.workspace[s.addr]; ok {
			continue
		}
		b.kept = append(b.kept, s)
		d.Segments++
		d.Blocks += s.all
		d.LiveBlocks += s.blocks
		if d.Reserved > maxSum-s.size || d.Inactive > maxSum-s.inactive || d.Active > maxSum-s.active {
			b.r.report.BadSegments++
			continue
		}
		d.Reserved += s.size
		d.Inactive += s.inactive
		d.Active += s.active
		d.LargestHole = max(d.LargestHole, s.hole)
		made := rowKey{stack: s.stack, pool: s.pool}
		if s.stack == 0 {
			made.note = noteNoSegmentStack
		}
		reserved.add(made, 1, s.size)
		inactive.add(made, s.inactiveN, s.inactive)
		blocks := b.r.blocks[s.first : s.first+s.blocks]
		if len(blocks) == 0 {
			holders.add(rowKey{note: noteEmptySegments, pool: s.pool}, s.inactiveN, s.inactive)
		}
		rest, restN := s.inactive, s.inactiveN
		for i := range blocks {
			k := &blocks[i]
			_, window := t.live.find(k.addr)
			key := rowKey{stack: k.stack, pool: s.pool}
			switch {
			case k.stack != 0:
			case window:
				key.note = noteNoFrames
			default:
				key.note = noteBefore
			}
			d.Requested += k.requested
			live.add(key, 1, k.requested)
			if k.size > k.requested {
				rounding.add(key, 1, k.size-k.requested)
			}
			d.Rounding += k.size - k.requested
			if k.state == statePending {
				d.Pending += k.requested
				pending.add(key, 1, k.requested)
			}
			if !window && (t.whole || k.stack == 0) {
				key.pool = 0
				b.old.add(key, 1, k.requested)
				b.spans = append(b.spans, span{addr: k.addr, size: k.size})
			}
			// What a segment cannot give back is shared out over the blocks that pin it, in proportion to their size.
			share, shareN := rest, restN
			if i < len(blocks)-1 {
				share, shareN = proportion(s.inactive, k.size, s.active), 0
			}
			key.pool = s.pool
			holders.add(key, shareN, share)
			rest -= share
		}
	}
	for addr, size := range t.workspace {
		_ = addr
		d.Workspaces++
		d.Workspace += min(max(size, 0), maxBytes)
	}
	d.views["live"], d.views["rounding"], d.views["pending"] = live.list(), rounding.list(), pending.list()
	for _, r := range d.views["rounding"][:min(3, len(d.views["rounding"]))] {
		d.Rounded = append(d.Rounded, StackUse{Stack: b.r.rowFrames(r), Bytes: r.bytes, Objects: r.objects})
	}
	d.views["reserved"], d.views["inactive"], d.views[holdersView] = reserved.list(), inactive.list(), holders.list()
}

// proportion is total*part/whole, rounded down, without overflow.
func proportion(total, part, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return int64(float64(total) * (float64(part) / float64(whole)))
}

// baseline works out what was live before the window.
func (b *viewBuilder) baseline() {
	d, t := b.d, b.trace
	var old int64
	for _, r := range b.old {
		old += r.bytes
	}
	d.Baseline = old + t.staleBytes
	// The same by the allocator's figures; they differ where the trace and the segments contradict each other.
	if t.whole && len(b.parts.segments) > 0 {
		b.r.report.Missing += abs(d.Requested - t.allocated + t.freed - d.Baseline)
	}
}

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}

func (b *viewBuilder) windowViews(steps *stepMarks) {
	d, t := b.d, b.trace
	d.Events = t.events
	d.Actions = map[string]int64{}
	for i, n := range t.actions {
		if n > 0 {
			d.Actions[known[keysEnd+i]] = n
		}
	}
	d.AllocBytes, d.AllocObjects, d.FreeBytes, d.FreeObjects = t.allocated, t.allocs, t.freed, t.frees
	d.StaleFrees, d.StaleBytes = t.stale, t.staleBytes
	d.WindowTruncated = t.stale > 0 || t.events > 0 && b.r.settings.WindowOverflowed
	d.SegmentAllocs, d.OOMCount = t.growths, t.oomCount
	report := &b.r.report
	report.StaleFrees += t.stale
	report.DoubleAllocs += t.bad.double
	report.BadSizes += t.bad.size
	report.AllocsLeftOut += t.survivorsLost

	alloc, survivors := rows{}, rows{}
	peak := b.old.clone()
	for i := range t.uses {
		u, key := &t.uses[i], windowKey(uint32(i))
		if u.allocN != 0 {
			alloc.add(key, u.allocN, u.alloc)
		}
		if u.liveN != 0 || u.live != 0 {
			survivors.add(key, u.liveN, u.live)
			d.SurvivorBytes += u.live
			d.SurvivorNum += u.liveN
		}
		// A stack that changed since the last peak held then what it holds now less the change.
		if bytes, n := u.live-u.since, u.liveN-u.sinceN; bytes != 0 || n != 0 {
			peak.add(key, n, bytes)
		}
	}
	peak.add(rowKey{note: noteBefore}, t.stale-t.peakStale, t.staleBytes-t.peakStaleSum)
	d.Peak, d.PeakIndex, d.PeakTime = d.Baseline+t.peak, t.peakIndex, micros(t.peakTime)
	d.views["alloc"], d.views["survivors"], d.views["peak"] = alloc.list(), survivors.list(), peak.list()
	if t.growths > 0 {
		g := &t.lastGrowth
		d.LastGrowth = &Growth{
			Index: g.index, Time: micros(g.time), Size: g.size, Live: d.Baseline + g.now, Stack: b.r.frames(g.stack),
			Reserved: max(0, d.Reserved-t.reserved+g.reserved),
		}
		if d.LastGrowth.Reserved > 0 {
			d.LastGrowth.Unused = max(0, d.LastGrowth.Reserved-d.LastGrowth.Live)
		}
	}
	b.leak(steps)
}

// rounded is the allocator's granule (kMinBlockSize in c10/cuda/CUDACachingAllocator.cpp).
const granule = 512

func rounded(size int64) int64 { return (size + granule - 1) / granule * granule }

func (b *viewBuilder) ooms() {
	d, t := b.d, b.trace
	var ranges []span
	for _, s := range b.kept {
		ranges = append(ranges, span{addr: s.addr, size: s.size, joins: s.expandable})
	}
	for i := range t.ooms {
		s := &t.ooms[i]
		o := &OOM{
			Device: d.Name, Index: s.index, Time: micros(s.time), Requested: s.requested, Free: s.free,
			Live: d.Baseline + s.now, LiveAtDump: d.Requested, Stack: b.r.frames(s.stack),
		}
		o.Unwound = t.whole && d.Requested < o.Live/2
		held := b.old.clone()
		blocks := slices.Clone(b.spans)
		for _, u := range s.uses {
			held.add(windowKey(u.stack), u.n, u.bytes)
		}
		held.add(rowKey{note: noteBefore}, t.stale-s.stale, t.staleBytes-s.staleBytes)
		rows := held.list()
		for _, r := range rows {
			o.LiveObjects += r.objects
		}
		for _, r := range rows[:min(3, len(rows))] {
			o.Top = append(o.Top, StackUse{Stack: b.r.rowFrames(r), Bytes: r.bytes, Objects: r.objects})
		}
		request := rowKey{stack: s.stack, note: noteOOM}
		o.rows = append(rows, row{rowKey: request, objects: 1, bytes: s.requested})
		if t.whole && len(b.kept) > 0 {
			o.Reserved = max(0, d.Reserved-t.reserved+s.reserved)
			for _, l := range s.live {
				blocks = append(blocks, span{addr: l.addr, size: rounded(l.size)})
			}
			for _, l := range t.staleLog {
				if l.index > s.index {
					blocks = append(blocks, span{addr: l.addr, size: rounded(l.size)})
				}
			}
			var used int64
			for _, k := range blocks {
				used += k.size
			}
			o.Inactive = max(0, o.Reserved-used)
			if events, ok := t.segments.since(s.segmentEventsSoFar); ok {
				o.LargestHole = largestHole(undo(ranges, events), blocks)
			}
		}
		d.OOMs = append(d.OOMs, o)
	}
	if n := len(d.OOMs); n > 0 {
		d.views["oom"] = d.OOMs[n-1].rows
	}
}

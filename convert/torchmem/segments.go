// SPDX-License-Identifier: Apache-2.0

package torchmem

import "github.com/heapwire/heapwire/convert/pickle"

// segment is memory that the allocator has from the device.
type segment struct {
	addr       uint64
	size       int64
	index      int // device
	host       bool
	stack      uint32
	pool       int32
	expandable bool

	first, blocks int   // in reader.blocks: those in use
	all           int   // blocks, the inactive ones included
	active        int64 // sum of the sizes of blocks in use
	inactive      int64
	inactiveN     int64
	hole          int64 // largest inactive block
}

// block is a part of a segment.
type block struct {
	addr      uint64
	size      int64 // what the allocator set aside
	requested int64
	stack     uint32
	state     uint8
}

const (
	stateInactive = iota
	stateActive
	statePending
)

func (r *reader) block(seen uint64) {
	b := block{
		addr: uint64(r.int(kAddress, seen)), size: r.int(kSize, seen), requested: r.int(kRequestedSize, seen), stack: r.stack(seen),
	}
	switch v := r.vals[kState]; {
	case v.Kind() == pickle.String && v.N == sActiveAllocated:
		b.state = stateActive
	case v.Kind() == pickle.String && (v.N == sActivePending || v.N == sActiveAwaiting):
		b.state = statePending
	case v.Kind() == pickle.String && v.N == sInactive:
		b.state = stateInactive
	case v.Kind() == pickle.String:
		r.report.unknown(inStates, v.N)
		return
	default:
		r.report.OddValues++
		return
	}
	if b.size < 0 || b.size > maxBytes || b.requested < 0 || b.requested > maxBytes {
		r.report.BadSizes++
		return
	}
	if seen&bit(kAddress) == 0 {
		b.addr = noAddress
	}
	// PyTorch 2.0 has no requested_size in inactive blocks' history and no frames; the entry in use comes first.
	if seen&bit(kHistory) != 0 && b.state != stateInactive {
		if v := r.vals[kHistory]; v.Is(tagHistory) && int(v.N) < len(r.histories) {
			h := r.histories[v.N]
			b.stack = h.stack
			if seen&bit(kRequestedSize) == 0 && h.size >= 0 && h.size <= maxBytes {
				b.requested = h.size
			}
		}
	}
	if len(r.blocks)-r.pending >= maxSegmentBlocks {
		r.report.BlocksLeftOut++
		return
	}
	r.blocks = append(r.blocks, b)
}

// noAddress marks a block of PyTorch 2.0, whose address is the sum of what is before it.
const noAddress = 1<<64 - 1

const maxSegmentBlocks = 8 << 20

func (r *reader) segment(seen uint64) {
	s := segment{
		addr: uint64(r.int(kAddress, seen)), size: r.int(kTotalSize, seen), stack: r.stack(seen), first: r.pending,
		expandable: seen&bit(kIsExpandable) != 0 && r.vals[kIsExpandable].N != 0,
	}
	blocks := r.blocks[r.pending:]
	keep := r.pending
	r.histories = r.histories[:0]
	device := r.int(kDevice, seen)
	if path := r.m.Path(); len(path) > 0 && path[0].Key == kHostSegments {
		s.host, device = true, 0 // -1 in the file
	}
	if s.size < 0 || s.size > maxBytes || device < 0 || device >= maxDevices || len(r.segments) >= maxSegments {
		r.report.BadSegments++
		r.blocks = r.blocks[:keep]
		return
	}
	s.index = int(device)
	if seen&bit(kStream) != 0 {
		r.streams++
		if r.vals[kStream].N == 0 {
			r.zeroStreams++
		}
	}
	if seen&bit(kSegmentPoolID) != 0 {
		if v := r.vals[kSegmentPoolID]; v.Is(tagPool) {
			s.pool = int32(v.N)
		}
	}
	at := s.addr
	for _, b := range blocks {
		if b.addr == noAddress {
			b.addr = at
		}
		if b.addr < at || s.size > 0 && b.addr+uint64(b.size) > s.addr+uint64(s.size) {
			r.report.OverlappingBlocks++
		}
		at = b.addr + uint64(b.size)
		s.all++
		if b.state == stateInactive {
			s.inactive += b.size
			s.inactiveN++
			s.hole = max(s.hole, b.size)
			continue
		}
		s.active += b.size
		s.blocks++
		r.blocks[keep] = b
		keep++
	}
	if s.active+s.inactive != s.size {
		r.report.UntiledSegments++
	}
	r.blocks = r.blocks[:keep]
	r.pending = keep
	r.segments = append(r.segments, s)
	r.recognised = true
}

const maxSegments = 1 << 20

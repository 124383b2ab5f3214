// SPDX-License-Identifier: Apache-2.0

package snapgen

// Truth is what the snapshot must read as, by the names of stacks: [Before] for blocks from before the recording, [None]
// for stacks without frames.
type Truth struct {
	Segments, Blocks                                int
	Reserved, Active, Requested, Inactive, Rounding int64
	Pending, Workspace                              int64
	Events                                          int64
	AllocBytes, AllocObjects                        int64
	Baseline, Peak                                  int64
	PeakIndex                                       int64
	StaleFrees                                      int64
	Survivors                                       int64
	Live, AtPeak, Alloc, Surviving                  map[string]int64
	ReservedBy                                      map[string]int64
	OOMs                                            []OOMTruth
}

// OOMTruth is the state at an out-of-memory error.
type OOMTruth struct {
	Index, Requested, Free, Live, Reserved, LargestHole int64
	By                                                  map[string]int64
}

// Names of what has no stack.
const (
	Before = "before"
	None   = "none"
)

// name of a stack; variants are named after their frames' number.
func (s *Snapshot) name(stack int32) string {
	if stack < 0 {
		return Before
	}
	if len(s.Stacks[stack]) == 0 {
		return None
	}
	for n, i := range s.Names {
		if i == int(stack) {
			return n
		}
	}
	return "variant"
}

// Truth replays the events that the snapshot holds, in the plainest way.
func (s *Snapshot) Truth() *Truth {
	t := &Truth{
		PeakIndex: -1, Live: map[string]int64{}, AtPeak: map[string]int64{}, Alloc: map[string]int64{}, Surviving: map[string]int64{},
		ReservedBy: map[string]int64{},
	}
	frames := !s.Options.NoContext
	named := func(stack int32) string {
		if !frames && stack >= 0 {
			return None
		}
		return s.name(stack)
	}
	window := s.events[s.dumped:]
	type alloc struct {
		size  int64
		stack int32
	}
	live := map[uint64]alloc{}
	var now, freed int64
	spaces := int64(3 * len(s.spaces))
	stale := map[uint64]int64{}
	for i, e := range window {
		switch e.action {
		case evAlloc:
			live[e.addr] = alloc{e.size, e.stack}
			now += e.size
			t.AllocBytes += e.size
			t.AllocObjects++
			t.Alloc[named(e.stack)] += e.size
			if now > t.Peak {
				t.Peak, t.PeakIndex = now, int64(i)+spaces
			}
		case evFreeCompleted:
			if _, ok := live[e.addr]; !ok {
				t.StaleFrees++
				stale[uint64(i)] = e.size
			}
			delete(live, e.addr)
			now -= e.size
			freed += e.size
		}
	}
	t.Events = int64(len(window)) + spaces
	for _, a := range live {
		t.Survivors += a.size
		t.Surviving[named(a.stack)] += a.size
	}
	for _, g := range s.segments {
		t.Segments++
		t.Reserved += g.size
		if n := s.name(g.stack); n == None {
			t.ReservedBy[Before] += g.size
		} else {
			t.ReservedBy[n] += g.size
		}
		for _, b := range g.blocks {
			t.Blocks++
			if b.state == inactive {
				t.Inactive += b.size
				continue
			}
			t.Active += b.size
			t.Requested += b.req
			t.Rounding += b.size - b.req
			if b.state == pending {
				t.Pending += b.req
			}
			_, inWindow := live[b.addr]
			n := s.name(b.stack)
			if n == None && !inWindow || b.stack < 0 {
				n = Before
			}
			t.Live[n] += b.req
		}
	}
	for _, w := range s.spaces {
		t.Workspace += w.size
	}
	t.Baseline = t.Requested - t.AllocBytes + freed
	t.Peak += t.Baseline
	t.AtPeak = s.at(t.PeakIndex-spaces, live0(live), named)
	for i, e := range window {
		if e.action != evOOM {
			continue
		}
		o := OOMTruth{Index: int64(i) + spaces, Requested: e.size, Free: int64(e.addr), By: s.at(int64(i), live0(live), named)}
		for _, v := range o.By {
			o.Live += v
		}
		o.Reserved = s.Options.Capacity - int64(e.addr)
		t.OOMs = append(t.OOMs, o)
	}
	return t
}

func live0[V any](m map[uint64]V) map[uint64]bool {
	out := make(map[uint64]bool, len(m))
	for k := range m {
		out[k] = true
	}
	return out
}

// at is what was live after event number n of the window, -1 for before it.
func (s *Snapshot) at(n int64, survivors map[uint64]bool, named func(int32) string) map[string]int64 {
	out := map[string]int64{}
	window := s.events[s.dumped:]
	// What was there before: blocks of the dump that the window did not make, and those it freed without having made.
	for _, g := range s.segments {
		for _, b := range g.blocks {
			if b.state != inactive && !survivors[b.addr] {
				n := s.name(b.stack)
				if n == None || b.stack < 0 {
					n = Before
				}
				out[n] += b.req
			}
		}
	}
	live := map[uint64]string{}
	for i, e := range window {
		switch e.action {
		case evAlloc:
			live[e.addr] = named(e.stack)
			if int64(i) <= n {
				out[named(e.stack)] += e.size
			}
		case evFreeCompleted:
			name, ok := live[e.addr]
			delete(live, e.addr)
			switch {
			case !ok && int64(i) > n:
				out[Before] += e.size
			case ok && int64(i) <= n:
				out[name] -= e.size
			}
		}
	}
	for k, v := range out {
		if v == 0 {
			delete(out, k)
		}
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package torchmem

// entry is a block that was allocated in the window and is not freed yet.
type entry struct {
	addr  uint64
	size  int64 // as requested
	time  int64 // microseconds, 0 if the trace has none
	index uint32
	stack uint32
	mark  int32 // the step that the user's metadata named, -1 for none
	used  bool
}

// liveMap maps addresses to entries: open addressing, linear probing, deletion by moving back.
type liveMap struct {
	slots []entry
	n     int
}

func (m *liveMap) at(addr uint64) int {
	return int(addr * 0x9e3779b97f4a7c15 >> 20 & uint64(len(m.slots)-1))
}

func (m *liveMap) find(addr uint64) (int, bool) {
	if m.n == 0 {
		return 0, false
	}
	for i := m.at(addr); ; i = (i + 1) & (len(m.slots) - 1) {
		s := &m.slots[i]
		if !s.used {
			return 0, false
		}
		if s.addr == addr {
			return i, true
		}
	}
}

// room is the place of an address: where it is, or where put may put it until the map changes.
func (m *liveMap) room(addr uint64) (int, bool) {
	if 2*m.n >= len(m.slots) {
		old := m.slots
		m.slots = make([]entry, max(256, 2*len(old)))
		for i := range old {
			if old[i].used {
				m.place(old[i])
			}
		}
	}
	for i := m.at(addr); ; i = (i + 1) & (len(m.slots) - 1) {
		if s := &m.slots[i]; !s.used || s.addr == addr {
			return i, s.used
		}
	}
}

func (m *liveMap) put(i int, e *entry) {
	s := &m.slots[i]
	*s = *e
	s.used = true
	m.n++
}

func (m *liveMap) place(e entry) {
	i := m.at(e.addr)
	for m.slots[i].used {
		i = (i + 1) & (len(m.slots) - 1)
	}
	m.slots[i] = e
}

func (m *liveMap) remove(i int) {
	mask := len(m.slots) - 1
	for j := (i + 1) & mask; m.slots[j].used; j = (j + 1) & mask {
		// An entry may move back to i unless its own place lies behind i.
		if home := m.at(m.slots[j].addr); (j-home)&mask >= (j-i)&mask {
			m.slots[i] = m.slots[j]
			i = j
		}
	}
	m.slots[i] = entry{}
	m.n--
}

func (m *liveMap) all(f func(*entry)) {
	for i := range m.slots {
		if m.slots[i].used {
			f(&m.slots[i])
		}
	}
}

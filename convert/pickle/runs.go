// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"bytes"
	"encoding/binary"
)

// runs remembers what the visitor answered to lists that were written as gets alone, by the bytes of the gets. Equal
// stacks are equal gets from the second occurrence on, and most of a snapshot is stacks.
type runs struct {
	entries    []run
	generation uint32 // entries of another one are void: a slot they read has changed
	kept       int    // bytes of all entries
	filled     int    // entries since the table was made
}

type run struct {
	raw        []byte
	sum        uint64
	generation uint32
	answer     Value
}

const (
	fewRuns     = 1 << 8
	mostRuns    = 1 << 14
	longestRun  = 8 << 10 // bytes
	maxRunBytes = 8 << 20
)

// gets is the length of the gets at the beginning of b if an APPENDS follows them, else 0.
func gets(b []byte) int {
	for n := 0; n < len(b); {
		switch b[n] {
		case opLongBinget:
			n += 5
		case opBinget:
			n += 2
		case opAppends:
			return n
		default:
			return 0
		}
	}
	return 0
}

func (r *runs) find(raw []byte) (*run, uint64) {
	sum := uint64(len(raw))
	for b := raw; len(b) > 0; {
		var word uint64
		if len(b) >= 8 {
			word = binary.LittleEndian.Uint64(b)
			b = b[8:]
		} else {
			for i, x := range b {
				word |= uint64(x) << (8 * i)
			}
			b = nil
		}
		sum = (sum ^ word) * 0x9e3779b97f4a7c15
		sum ^= sum >> 29
	}
	if r.entries == nil {
		r.entries = make([]run, fewRuns)
	}
	return &r.entries[sum>>32%uint64(len(r.entries))], sum
}

func (r *runs) holds(e *run, raw []byte, sum uint64) bool {
	return e.sum == sum && e.generation == r.generation && e.raw != nil && bytes.Equal(e.raw, raw)
}

func (r *runs) keep(e *run, raw []byte, sum uint64, answer Value) {
	switch {
	case r.kept > maxRunBytes:
		clear(r.entries)
		r.kept, r.filled = 0, 0
	case r.filled > len(r.entries) && len(r.entries) < mostRuns:
		// Begun anew: what is met again comes back.
		r.entries = make([]run, 4*len(r.entries))
		r.kept, r.filled = 0, 0
		e = &r.entries[sum>>32%uint64(len(r.entries))]
	}
	r.filled++
	r.kept += len(raw) - len(e.raw)
	answer.setSlot(0)
	*e = run{raw: bytes.Clone(raw), sum: sum, generation: r.generation, answer: answer}
}

// listOfGets reads a list whose items are all gets, from the first get to the APPENDS; base is where the items go. False
// if it is another kind of list.
func (m *Machine) listOfGets(base, n int) (bool, error) {
	in := &m.in
	raw := in.buf[in.pos : in.pos+n]
	e, sum := m.runs.find(raw)
	list := m.stack[base-1]
	if m.runs.holds(e, raw, sum) {
		if slot := list.slot(); slot != 0 {
			m.memo.set(slot-1, m.memo.object(e.answer))
		}
		v := e.answer
		v.setSlot(list.slot())
		m.stack[base-1] = v
		return true, nil
	}
	sp := base
	for at := 0; at < n; sp++ {
		slot := uint32(raw[at+1])
		if raw[at] == opLongBinget {
			slot = binary.LittleEndian.Uint32(raw[at+1:])
			at += 5
		} else {
			at += 2
		}
		object := m.memo.get(slot)
		if sp >= len(m.stack) || m.memo.objects[object].Kind() != Ref {
			return false, nil // the usual way knows what to do
		}
		m.stack[sp] = m.memo.objects[object]
	}
	if _, err := m.items(base, sp); err != nil {
		return false, err
	}
	if v := m.stack[base-1]; v.Kind() == Ref {
		m.runs.keep(e, raw, sum, v)
	}
	return true, nil
}

// SPDX-License-Identifier: Apache-2.0

package pickle

// Objects that are always there.
const (
	objectUnset = iota
	objectDropped
	objectOpenList // an empty list, or one whose items have not come yet
	objectOpenDict
	objectList
	objectDict
	objectTuple
	objectNone
	objectFalse
	objectTrue
	objectsFixed
)

const (
	pageBits = 16
	pageSize = 1 << pageBits
)

// memo maps slots to objects. A file of 1 GB fills 10 to 30 million slots, most of which nobody reads again, with some
// thousand different objects: a slot is therefore the number of an object in two bytes, and in four bytes on pages that
// hold a number too large for two.
type memo struct {
	pages   []page
	objects []Value
	// Objects of the strings by their number, and of the visitor's references by tag and number; 0: none yet.
	ofText []uint32
	ofRef  [256][]uint32
	used   int64 // slots that are set
	puts   int64
	// numbers are memoised by no pickler, and cost an object each.
	numbers int
	// tail is the page of slot number used if it is a narrow one that is not full, as it nearly always is.
	tail     *[pageSize]uint16
	tailPage int64
}

type page struct {
	narrow *[pageSize]uint16
	wide   *[pageSize]uint32
}

func newMemo() memo {
	m := memo{objects: make([]Value, objectsFixed)}
	m.objects[objectDropped] = value(Dropped, 1)
	m.objects[objectOpenList] = Value{meta: uint64(List) | listFlag}
	m.objects[objectOpenDict] = value(Dict, 0)
	m.objects[objectList] = Value{N: 1, meta: uint64(List) | listFlag}
	m.objects[objectDict] = value(Dict, 1)
	m.objects[objectTuple] = value(Tuple, 0)
	m.objects[objectNone] = value(None, 0)
	m.objects[objectFalse] = value(Bool, 0)
	m.objects[objectTrue] = value(Bool, 1)
	return m
}

// get is the object in a slot, objectUnset if there is none.
func (m *memo) get(slot uint32) uint32 {
	n := int(slot >> pageBits)
	if n >= len(m.pages) {
		return objectUnset
	}
	p := &m.pages[n]
	if p.narrow != nil {
		return uint32(p.narrow[slot&(pageSize-1)])
	}
	if p.wide != nil {
		return p.wide[slot&(pageSize-1)]
	}
	return objectUnset
}

func (m *memo) set(slot, object uint32) {
	n := int(slot >> pageBits)
	for n >= len(m.pages) {
		m.pages = append(m.pages, page{})
	}
	p := &m.pages[n]
	at := slot & (pageSize - 1)
	if p.narrow == nil && p.wide == nil {
		p.narrow = new([pageSize]uint16)
	}
	if p.narrow != nil {
		if p.narrow[at] == objectUnset {
			m.used++
		}
		if object < 1<<16 {
			p.narrow[at] = uint16(object)
			m.tail, m.tailPage = p.narrow, int64(n)
			return
		}
		if m.tailPage == int64(n) {
			m.tail = nil
		}
		p.wide = new([pageSize]uint32)
		for i, o := range p.narrow {
			p.wide[i] = uint32(o)
		}
		p.narrow = nil
	} else if p.wide[at] == objectUnset {
		m.used++
	}
	p.wide[at] = object
}

// push sets slot number used, false where set must do it.
func (m *memo) push(object uint32) bool {
	at := m.used & (pageSize - 1)
	if m.tail == nil || m.used>>pageBits != m.tailPage || object >= 1<<16 || m.tail[at] != objectUnset {
		return false
	}
	m.tail[at] = uint16(object)
	m.used++
	m.puts++
	return true
}

// known is the object of a value that needs no other care, else 0.
func (m *memo) known(v *Value) uint32 {
	switch {
	case v.Kind() == String && v.N < int64(len(m.ofText)):
		return m.ofText[v.N]
	case v.N != 0:
	case v.Kind() == List:
		return objectOpenList
	case v.Kind() == Dict:
		return objectOpenDict
	}
	return 0
}

// object is the number of a value's object; it makes one where the value is new.
func (m *memo) object(v Value) uint32 {
	switch v.Kind() {
	case String:
		return m.numbered(&m.ofText, v)
	case Ref:
		return m.numbered(&m.ofRef[v.tag()], v)
	case Dropped:
		return objectDropped
	case List:
		if v.N == 0 {
			return objectOpenList
		}
		return objectList
	case Dict:
		if v.N == 0 {
			return objectOpenDict
		}
		return objectDict
	case Tuple:
		return objectTuple
	case None:
		return objectNone
	case Bool:
		return objectFalse + uint32(v.N&1)
	}
	m.numbers++
	m.objects = append(m.objects, v)
	return uint32(len(m.objects) - 1)
}

func (m *memo) numbered(table *[]uint32, v Value) uint32 {
	for int(v.N) >= len(*table) {
		*table = append(*table, make([]uint32, max(64, len(*table)))...)
	}
	o := (*table)[v.N]
	if o == 0 {
		v.setSlot(0)
		m.objects = append(m.objects, v)
		o = uint32(len(m.objects) - 1)
		(*table)[v.N] = o
	}
	return o
}

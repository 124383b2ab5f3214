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
}

type page struct {
	narrow *[pageSize]uint16
	wide   *[pageSize]uint32
}

func newMemo() memo {
	m := memo{objects: make([]Value, objectsFixed)}
	m.objects[objectDropped] = Value{Kind: Dropped, N: 1}
	m.objects[objectOpenList] = Value{Kind: List, list: true}
	m.objects[objectOpenDict] = Value{Kind: Dict}
	m.objects[objectList] = Value{Kind: List, N: 1, list: true}
	m.objects[objectDict] = Value{Kind: Dict, N: 1}
	m.objects[objectTuple] = Value{Kind: Tuple}
	m.objects[objectNone] = Value{Kind: None}
	m.objects[objectFalse] = Value{Kind: Bool}
	m.objects[objectTrue] = Value{Kind: Bool, N: 1}
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
			return
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

// object is the number of a value's object; it makes one where the value is new.
func (m *memo) object(v Value) uint32 {
	switch v.Kind {
	case String:
		return m.numbered(&m.ofText, v)
	case Ref:
		return m.numbered(&m.ofRef[v.Tag], v)
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
	m.objects = append(m.objects, v)
	return uint32(len(m.objects) - 1)
}

func (m *memo) numbered(table *[]uint32, v Value) uint32 {
	for int(v.N) >= len(*table) {
		*table = append(*table, make([]uint32, max(64, len(*table)))...)
	}
	o := (*table)[v.N]
	if o == 0 {
		v.memo = 0
		m.objects = append(m.objects, v)
		o = uint32(len(m.objects) - 1)
		(*table)[v.N] = o
	}
	return o
}

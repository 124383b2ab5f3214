// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/binary"
	"slices"
)

// tables are the dictionary that all profiles of a request share, as plain rows: pprofile's data and the wire are both made of
// them. Row 0 of each is zero, as the data model requires, so that index 0 means "none"
// (opentelemetry-collector#15897: NewProfiles leaves it out).
type tables struct {
	strings    []string
	functions  []function
	mappings   []mapping
	attributes []attribute
	locations  []location
	lines      []line // of all locations
	stacks     []span // of frames
	frames     []int32

	byString    map[string]int32
	byFunction  map[function]int32
	byMapping   map[mapping]int32
	byAttribute map[string]int32 // encoded row → index
	byLocation  index
	byStack     index

	key []byte // scratch for the encoded keys
}

// span is a part of a list that many rows share.
type span struct{ from, to int }

type function struct {
	name, system, file int32
	startLine          int64
}

type mapping struct {
	start, limit, offset uint64
	file, buildID        int32 // buildID: an attribute, 0 for none
}

// attribute has one value, of texts and then numbers: one of them is a plain value, several are an array, because a key may
// occur only once in a message. The unit is UCUM's.
type attribute struct {
	key, unit int32
	texts     []string
	numbers   []int64
}

type location struct {
	address            uint64
	mapping, frameType int32 // frameType: an attribute
	lines              span
}

// line is one row of a location, innermost inlined function first.
type line struct {
	function     int32
	line, column int64
}

// newTables makes tables with room for so many rows.
func newTables(functions, locations, stacks, frames int) *tables {
	t := &tables{
		strings:    make([]string, 1, 2*functions+64),
		functions:  make([]function, 1, functions+1),
		mappings:   make([]mapping, 1),
		attributes: make([]attribute, 1),
		locations:  make([]location, 1, locations+1),
		lines:      make([]line, 0, locations),
		stacks:     make([]span, 1, stacks+1),
		frames:     make([]int32, 0, frames),

		byString:    make(map[string]int32, 2*functions+64),
		byFunction:  make(map[function]int32, functions),
		byMapping:   map[mapping]int32{},
		byAttribute: map[string]int32{},
		byLocation:  newIndex(locations),
		byStack:     newIndex(stacks),
	}
	t.byString[""], t.byFunction[function{}] = 0, 0
	return t
}

func (t *tables) str(s string) int32 {
	if s == "" {
		return 0
	}
	i, ok := t.byString[s]
	if !ok {
		i = int32(len(t.strings))
		t.strings = append(t.strings, s)
		t.byString[s] = i
	}
	return i
}

func (t *tables) attribute(key string, texts []string, numbers []int64, unit string) int32 {
	a := attribute{t.str(key), t.str(unit), texts, numbers}
	b := binary.AppendUvarint(t.key[:0], uint64(a.key))
	b = binary.AppendUvarint(b, uint64(a.unit))
	for _, s := range texts {
		b = append(b, 's')
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, n := range numbers {
		b = append(b, 'i')
		b = binary.AppendVarint(b, n)
	}
	t.key = b
	i, ok := t.byAttribute[string(b)]
	if !ok {
		i = int32(len(t.attributes))
		t.attributes = append(t.attributes, a)
		t.byAttribute[string(b)] = i
	}
	return i
}

func (t *tables) text(key, value string) int32 { return t.attribute(key, []string{value}, nil, "") }

func (t *tables) function(name, system, file string, startLine int64) int32 {
	if system == name {
		system = ""
	}
	f := function{t.str(name), t.str(system), t.str(file), startLine}
	i, ok := t.byFunction[f]
	if !ok {
		i = int32(len(t.functions))
		t.functions = append(t.functions, f)
		t.byFunction[f] = i
	}
	return i
}

// mapping interns a mapping; buildID is its attribute, 0 for none.
func (t *tables) mapping(start, limit, offset uint64, file string, buildID int32) int32 {
	m := mapping{start, limit, offset, t.str(file), buildID}
	i, ok := t.byMapping[m]
	if !ok {
		i = int32(len(t.mappings))
		t.mappings = append(t.mappings, m)
		t.byMapping[m] = i
	}
	return i
}

func (t *tables) location(mapping int32, address uint64, lines []line, frameType int32) int32 {
	h := mix(mix(uint64(mapping)<<32|uint64(frameType), address), uint64(len(lines)))
	for _, l := range lines {
		h = mix(mix(mix(h, uint64(l.function)), uint64(l.line)), uint64(l.column))
	}
	i := t.byLocation.find(h, func(i int32) bool {
		l := &t.locations[i]
		return l.mapping == mapping && l.address == address && l.frameType == frameType && slices.Equal(t.linesOf(l), lines)
	})
	if i == 0 {
		i = int32(len(t.locations))
		from := len(t.lines)
		t.lines = append(t.lines, lines...)
		t.locations = append(t.locations, location{address, mapping, frameType, span{from, len(t.lines)}})
		t.byLocation.add(h, i)
	}
	return i
}

func (t *tables) linesOf(l *location) []line { return t.lines[l.lines.from:l.lines.to] }

// stack interns a stack, leaf first. The empty stack is row 0.
func (t *tables) stack(locations []int32) int32 {
	if len(locations) == 0 {
		return 0
	}
	h := uint64(len(locations))
	for _, l := range locations {
		h = mix(h, uint64(l))
	}
	i := t.byStack.find(h, func(i int32) bool { return slices.Equal(t.framesOf(i), locations) })
	if i == 0 {
		i = int32(len(t.stacks))
		from := len(t.frames)
		t.frames = append(t.frames, locations...)
		t.stacks = append(t.stacks, span{from, len(t.frames)})
		t.byStack.add(h, i)
	}
	return i
}

func (t *tables) framesOf(stack int32) []int32 {
	s := t.stacks[stack]
	return t.frames[s.from:s.to]
}

// index finds the rows of a table by a hash of what is in them: open addressing, half full at most. A Go map would want a
// string of each row.
type index struct {
	slots  []int32  // 0 is free: row 0 is in no index
	hashes []uint64 // by row
}

func newIndex(rows int) index {
	n := 16
	for n < 2*rows {
		n *= 2
	}
	return index{make([]int32, n), make([]uint64, 1, rows+1)}
}

// find gives the row with that hash that is the same, 0 if there is none.
func (x *index) find(hash uint64, same func(row int32) bool) int32 {
	mask := uint64(len(x.slots) - 1)
	for i := hash >> 16 & mask; x.slots[i] != 0; i = (i + 1) & mask {
		if row := x.slots[i]; x.hashes[row] == hash && same(row) {
			return row
		}
	}
	return 0
}

// add puts in the table's next row.
func (x *index) add(hash uint64, row int32) {
	x.hashes = append(x.hashes, hash)
	if 2*len(x.hashes) <= len(x.slots) {
		x.put(hash, row)
		return
	}
	x.slots = make([]int32, 2*len(x.slots))
	for row, hash := range x.hashes[1:] {
		x.put(hash, int32(row+1))
	}
}

func (x *index) put(hash uint64, row int32) {
	mask := uint64(len(x.slots) - 1)
	i := hash >> 16 & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = row
}

// mix takes one more number into a hash.
func mix(hash, x uint64) uint64 {
	hash = (hash ^ x) * 0x9e3779b97f4a7c15 // the golden ratio
	return hash ^ hash>>29
}

// SPDX-License-Identifier: Apache-2.0

package pickle

import "math"

// Kind says what a [Value] is.
type Kind uint8

// Kinds of values, and what N is for each.
const (
	None    Kind = iota
	Bool         // 0 or 1
	Int          // the integer modulo 2^64: what is above 2^63 reads negative
	Float        // the bits of the float64
	String       // the number of the text, see [Machine.Text]
	List         // 0 for an empty one, else how many items, as far as known
	Dict         // the same in pairs
	Tuple        // how many items, as far as known
	Ref          // the visitor's own: what it returned for a container
	Dropped      // a container the visitor did not want; N of them in a row
)

// Value is one value of a pickle. It is two words, as values are what a pickle is made of and each is moved several times.
type Value struct {
	N int64
	// From the lowest: kind 8 bits, tag 8 bits, listFlag; in the upper half the index plus one of the memo slot of a
	// container that may still grow.
	meta uint64
}

const (
	tagShift  = 8
	listFlag  = 1 << 16 // the value is or was a list
	slotShift = 32
)

// Reference is what a visitor returns for a container that means something to it. n must be at least 0, and dense: the
// machine keeps a table as long as the largest of each tag.
func Reference(tag uint8, n int64) Value {
	return Value{N: n, meta: uint64(Ref) | uint64(tag)<<tagShift}
}

// Drop is what a visitor returns for a container that nobody needs any more. Where the pickle refers to it again, it reads
// as an empty one.
func Drop() Value { return value(Dropped, 1) }

func value(k Kind, n int64) Value { return Value{N: n, meta: uint64(k)} }

// Kind says what the value is.
func (v *Value) Kind() Kind { return Kind(v.meta) }

// Is tells whether the value is a reference with this tag.
func (v *Value) Is(tag uint8) bool { return v.meta&0xffff == uint64(Ref)|uint64(tag)<<tagShift }

// Become gives an open container a meaning before it is complete, see [Machine.Parent].
func (v *Value) Become(tag uint8, n int64) {
	v.N = n
	v.meta = v.meta&^0xffff | uint64(Ref) | uint64(tag)<<tagShift
}

func (v *Value) tag() uint8 { return uint8(v.meta >> tagShift) }

func (v *Value) isList() bool { return v.meta&listFlag != 0 }

func (v *Value) slot() uint32 { return uint32(v.meta >> slotShift) }

func (v *Value) setSlot(slot uint32) { v.meta = v.meta&(1<<slotShift-1) | uint64(slot)<<slotShift }

// Float is the value of a Float.
func (v *Value) Float() float64 { return math.Float64frombits(uint64(v.N)) }

// Visitor is told of the containers of a pickle. The slices are the machine's own and hold until the call returns.
//
// A list of more than 1,000 items comes in parts, as CPython's pickler writes it: the value passed first is then what the
// visitor returned for the part before. A list of nothing but Refs that was seen before, item for item, may get the answer
// it got then, if that was a Ref, without a call. An error ends the reading.
type Visitor interface {
	// Dict is told pairs, key and value in turn, and returns what the dict is from now on: a [Reference], [Drop], or
	// dict itself.
	Dict(dict Value, pairs []Value) (Value, error)
	// List is told items. Several Dropped in a row may have become one.
	List(list Value, items []Value) (Value, error)
	Tuple(items []Value) (Value, error)
}

// Step is one container on the way from the whole to a value.
type Step struct {
	Key   int64 // number of the key's text in a dict, -1 in a list
	Index int64 // position in a list; in the part at hand, if the visitor gave the list a meaning
}

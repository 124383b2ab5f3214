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

// Value is one value of a pickle.
type Value struct {
	N    int64
	memo uint32 // index of the memo slot plus one, of a container that may still grow
	Kind Kind
	// Tag and N of a Ref are the visitor's. N must be at least 0 and dense: the machine keeps a table as long as the largest.
	Tag  uint8
	list bool // the value is or was a list
}

// Float is the value of a Float.
func (v Value) Float() float64 { return math.Float64frombits(uint64(v.N)) }

// Visitor is told of the containers of a pickle. The slices are the machine's own and hold until the call returns.
//
// A list of more than 1,000 items comes in parts, as CPython's pickler writes it: the value passed first is then what the
// visitor returned for the part before. An error ends the reading.
type Visitor interface {
	// Dict is told pairs, key and value in turn, and returns what the dict is from now on: a Ref, Dropped, or dict itself.
	Dict(dict Value, pairs []Value) (Value, error)
	// List is told items. Several Dropped in a row may have become one.
	List(list Value, items []Value) (Value, error)
	Tuple(items []Value) (Value, error)
}

// Step is one container on the way from the whole to a value.
type Step struct {
	Key   int64 // number of the key's text in a dict, -1 in a list
	Index int64 // position in a list
}

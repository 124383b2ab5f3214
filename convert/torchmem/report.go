// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"fmt"
	"slices"
	"strings"
)

// place is the kind of dict in which something was found.
type place uint8

const (
	inOther place = iota
	inTop
	inEvent
	inFrame
	inSegment
	inBlock
	inHistory
	inAnnotation
	inActions // action of an event
	inStates  // state of a block
)

var placeNames = [...]string{
	inTop: "key of the snapshot", inEvent: "key of an event", inFrame: "key of a frame", inSegment: "key of a segment",
	inBlock: "key of a block", inHistory: "key of a block's history", inAnnotation: "key of an annotation",
	inActions: "action", inStates: "state of a block",
}

// Unknown is a key, an action or a state that the reader does not know.
type Unknown struct {
	Where string // "key of an event", "action", ...
	Text  string
	Count int64
}

// Report counts what was odd about a snapshot and did not keep it from being read.
type Report struct {
	Name  string // what the input was called
	Bytes int64  // read, after decompression
	// Truncated tells that the input ends before the snapshot does. What was read of it is here.
	Truncated bool
	Unknown   []Unknown // by count

	OddKeys           int64 // dict keys that are no strings
	OddValues         int64 // values of a type that makes no sense there
	BadSizes          int64 // negative, or more than any device has
	BadSegments       int64
	UntiledSegments   int64 // whose blocks do not add up to it
	OverlappingBlocks int64
	OverlappingRanges int64 // segments that share addresses
	BlocksLeftOut     int64
	StrayEvents       int64 // in no device's list
	DoubleAllocs      int64 // of an address that was live: the first is taken as freed
	StaleFrees        int64 // of addresses that the window did not allocate; ordinary where it begins late
	AllocsLeftOut     int64 // beyond Options.MaxLive
	StacksLeftOut     int64 // beyond Options.MaxStacks
	DeepStacks        int64 // which lost their outermost frames
	TextsLeftOut      int64
	// Missing is by how many bytes what the trace says is live and what the segments say differ.
	Missing int64

	counts map[unknownKey]int64
}

type unknownKey struct {
	where place
	text  int64
}

const maxUnknown = 1 << 12

func (r *Report) unknown(where place, text int64) {
	k := unknownKey{where, text}
	if _, ok := r.counts[k]; !ok {
		if len(r.counts) >= maxUnknown {
			return
		}
		if r.counts == nil {
			r.counts = map[unknownKey]int64{}
		}
	}
	r.counts[k]++
}

func (r *Report) finish(text func(int64) string) {
	for k, n := range r.counts {
		r.Unknown = append(r.Unknown, Unknown{Where: placeNames[k.where], Text: text(k.text), Count: n})
	}
	slices.SortFunc(r.Unknown, func(a, b Unknown) int {
		if a.Count != b.Count {
			return int(b.Count - a.Count)
		}
		return strings.Compare(a.Where+a.Text, b.Where+b.Text)
	})
	r.counts = nil
}

// Warnings tells what a reader of the profiles should know, a sentence each, beginning with the input's name.
func (r *Report) Warnings() []string {
	var w []string
	say := func(n int64, format string, args ...any) {
		if n != 0 {
			w = append(w, r.Name+": "+fmt.Sprintf(format, args...))
		}
	}
	if r.Truncated {
		say(1, "byte %d: the snapshot ends here, before its end: what is missing is not in the profiles", r.Bytes)
	}
	for i, u := range r.Unknown {
		if i == 8 {
			say(1, "%d more unknown keys, actions and states were skipped", len(r.Unknown)-i)
			break
		}
		say(1, "unknown %s %q was skipped, %d times", u.Where, cut(u.Text), u.Count)
	}
	say(r.BadSegments, "%d segments were skipped: their size or device cannot be", r.BadSegments)
	say(r.BadSizes, "%d sizes cannot be (negative, or above %d TiB): the blocks and events were skipped", r.BadSizes, int64(maxBytes)>>40)
	say(r.OverlappingRanges, "%d segments overlap with another", r.OverlappingRanges)
	say(r.OverlappingBlocks, "%d blocks overlap with another, or leave their segment", r.OverlappingBlocks)
	say(r.UntiledSegments, "%d segments are not the sum of their blocks: reserved is not active plus inactive", r.UntiledSegments)
	say(r.BlocksLeftOut, "%d blocks were left out: too many in one segment", r.BlocksLeftOut)
	say(r.DoubleAllocs, "%d allocations of an address that was in use: the earlier block was taken as freed", r.DoubleAllocs)
	say(r.AllocsLeftOut, "%d allocations were left out: too many blocks are live at a time", r.AllocsLeftOut)
	say(r.StrayEvents, "%d events belong to no device and were skipped", r.StrayEvents)
	say(r.Missing, "what the events leave live and the blocks of the segments differ by %d bytes", r.Missing)
	say(r.StacksLeftOut, "%d stacks are shown as %s: too many distinct ones", r.StacksLeftOut, StackLeftOut)
	say(r.DeepStacks, "%d stacks lost their outermost frames: deeper than %d", r.DeepStacks, maxDepth)
	say(r.TextsLeftOut, "%d texts were left out: too many distinct ones", r.TextsLeftOut)
	say(r.OddKeys, "%d dict keys are no strings and were skipped", r.OddKeys)
	say(r.OddValues, "%d values have a type that makes no sense there and were skipped", r.OddValues)
	return w
}

// cut keeps a text of unknown origin to a line's length.
func cut(text string) string {
	const limit = 80
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "..."
}

// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// LeftOut is what a string reads as when there were more distinct ones than the limits allow.
const LeftOut = "[text left out]"

// texts numbers distinct strings.
type texts struct {
	all     []string
	index   map[string]int32
	bytes   int
	leftOut int32 // number of LeftOut, -1 until it is needed
	lost    int64
	// recent remembers short strings by their content. Most strings of a snapshot are the same few short ones, written
	// anew each time: compile_context is "N/A" in every event.
	recent [256]struct {
		word uint64
		len  uint8
		id   int32
	}
}

func newTexts() texts { return texts{index: map[string]int32{}, leftOut: -1} }

// short finds a string of n bytes, 8 at most, among the recent ones; word begins with them.
func (t *texts) short(word uint64, n int) (int64, bool) {
	word &= 1<<(8*uint(n)) - 1 // all ones for n = 8, as 1<<64 is 0
	r := &t.recent[(word*0x9e3779b97f4a7c15)>>56]
	return int64(r.id), r.word == word && int(r.len) == n && n > 0
}

func (t *texts) intern(b []byte, limits *Limits) int64 {
	id := t.find(b, limits)
	if len(b) <= 8 && len(b) > 0 {
		var pad [8]byte
		copy(pad[:], b)
		word := binary.LittleEndian.Uint64(pad[:])
		r := &t.recent[(word*0x9e3779b97f4a7c15)>>56]
		r.word, r.len, r.id = word, uint8(len(b)), int32(id)
	}
	return id
}

func (t *texts) find(b []byte, limits *Limits) int64 {
	if id, ok := t.index[string(b)]; ok {
		return int64(id)
	}
	if len(t.all) >= limits.Texts || t.bytes+len(b) > limits.AllText {
		t.lost++
		if t.leftOut < 0 {
			t.leftOut = t.add(LeftOut, LeftOut)
		}
		return int64(t.leftOut)
	}
	raw := string(b)
	text := raw
	if !utf8.ValidString(text) { // CPython writes lone surrogates, which are file names that are no UTF-8
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return int64(t.add(raw, text))
}

func (t *texts) add(raw, text string) int32 {
	id := int32(len(t.all))
	t.all = append(t.all, text)
	t.index[raw] = id
	t.bytes += len(raw)
	return id
}

// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"slices"
	"strconv"
	"strings"

	"github.com/heapwire/heapwire/convert/pickle"
)

// frame is one line of a stack; the texts are numbers of the pickle machine.
type frame struct {
	name, file int32
	line       int32
}

// stackTable numbers distinct frames and stacks. A snapshot has one list of frames for each traceback that was captured,
// which is two lists for three events; distinct ones are some hundred. Stack 0 is the empty one.
type stackTable struct {
	frames []frame
	index  map[frame]int32

	arena  []uint32 // frames of all stacks, leaf first
	starts []uint32 // of each stack in arena, and the end of the last
	hashes []uint32
	slots  []uint32 // open addressing, stack number plus one
	limit  int
	lost   int64 // lists that became the stack that stands for those beyond the limit
	rest   uint32
}

const maxFrames = 1 << 20

func newStackTable(limit int) stackTable {
	t := stackTable{index: map[frame]int32{}, starts: []uint32{0}, slots: make([]uint32, 1024), limit: limit}
	t.add(nil, hashFrames(nil))
	return t
}

func (t *stackTable) frame(f frame) int32 {
	id, ok := t.index[f]
	if ok {
		return id
	}
	if len(t.frames) >= maxFrames {
		return int32(len(t.frames) - 1)
	}
	id = int32(len(t.frames))
	t.frames = append(t.frames, f)
	t.index[f] = id
	return id
}

func (t *stackTable) len() int { return len(t.hashes) }

func (t *stackTable) get(stack uint32) []uint32 {
	return t.arena[t.starts[stack]:t.starts[stack+1]]
}

func mix(h, v uint64) uint64 { return (h ^ v) * 0x9e3779b97f4a7c15 }

func finish(h uint64) uint32 { return uint32(h >> 32) }

func hashFrames(frames []uint32) uint32 {
	h := uint64(len(frames))
	for _, f := range frames {
		h = mix(h, uint64(f))
	}
	return finish(h)
}

// fromItems numbers the stack of a list's items, false if they are not all frames.
func (t *stackTable) fromItems(items []pickle.Value) (uint32, bool) {
	h := uint64(len(items))
	for i := range items {
		if !items[i].Is(tagFrame) {
			return 0, false
		}
		h = mix(h, uint64(items[i].N))
	}
	sum := finish(h)
	mask := uint32(len(t.slots) - 1)
next:
	for i := sum & mask; ; i = (i + 1) & mask {
		s := t.slots[i]
		if s == 0 {
			break
		}
		if t.hashes[s-1] != sum {
			continue
		}
		have := t.get(s - 1)
		if len(have) != len(items) {
			continue
		}
		for k := range have {
			if have[k] != uint32(items[k].N) {
				continue next
			}
		}
		return s - 1, true
	}
	frames := make([]uint32, len(items))
	for i := range items {
		frames[i] = uint32(items[i].N)
	}
	return t.add(frames, sum), true
}

func (t *stackTable) fromFrames(frames []uint32) uint32 {
	sum := hashFrames(frames)
	mask := uint32(len(t.slots) - 1)
	for i := sum & mask; t.slots[i] != 0; i = (i + 1) & mask {
		if s := t.slots[i] - 1; t.hashes[s] == sum && slices.Equal(t.get(s), frames) {
			return s
		}
	}
	return t.add(frames, sum)
}

func (t *stackTable) add(frames []uint32, sum uint32) uint32 {
	if t.len() >= t.limit || len(t.arena)+len(frames) > maxArena {
		t.lost++
		return t.rest
	}
	if 2*t.len() >= len(t.slots) {
		t.slots = make([]uint32, 4*len(t.slots))
		for id, h := range t.hashes {
			t.place(uint32(id), h)
		}
	}
	id := uint32(t.len())
	t.arena = append(t.arena, frames...)
	t.starts = append(t.starts, uint32(len(t.arena)))
	t.hashes = append(t.hashes, sum)
	t.place(id, sum)
	return id
}

// maxArena bounds the frames of all distinct stacks together, 4 bytes each.
const maxArena = 32 << 20

func (t *stackTable) place(id, sum uint32) {
	mask := uint32(len(t.slots) - 1)
	i := sum & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = id + 1
}

// parseTraceback reads a line of a formatted traceback, `  File "model.py", line 12, in forward`, as forward_frames has
// them. What reads otherwise becomes a name without a file.
func parseTraceback(text string) (name, file string, line int32) {
	head, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	rest, ok := strings.CutPrefix(head, `File "`)
	if !ok {
		return head, "", 0
	}
	file, rest, ok = strings.Cut(rest, `", line `)
	if !ok {
		return head, "", 0
	}
	number, name, _ := strings.Cut(rest, ", in ")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return head, "", 0
	}
	return name, file, int32(n)
}

// SPDX-License-Identifier: Apache-2.0

package jemalloc

// addressTable gives every distinct address a small number, in order of appearance. It is a plain open-addressing
// table: the parser asks it once for every frame of the file, and a Go map costs it a third of its speed.
type addressTable struct {
	slots     []addressSlot
	addresses []uint64
	shift     uint
	touched   uint32 // keeps the compiler from dropping the touches
}

type addressSlot struct {
	address uint64
	number  uint32 // plus 1; 0 for a free slot
}

func newAddressTable() *addressTable {
	const bits = 10
	return &addressTable{slots: make([]addressSlot, 1<<bits), shift: 64 - bits}
}

// ids appends the numbers of many addresses. Their first slots are touched before any is looked at: a big dump's table
// does not fit the caches, and this way the processor waits for many slots at once.
func (t *addressTable) ids(to []uint32, addresses []uint64) []uint32 {
	for _, a := range addresses {
		t.touched |= t.slots[hash(a)>>t.shift].number
	}
	for _, a := range addresses {
		to = append(to, t.id(a))
	}
	return to
}

func (t *addressTable) id(address uint64) uint32 {
	mask := uint32(len(t.slots) - 1)
	i := uint32(hash(address) >> t.shift)
	for {
		s := &t.slots[i]
		if s.address == address && s.number != 0 {
			return s.number - 1
		}
		if s.number == 0 {
			t.addresses = append(t.addresses, address)
			*s = addressSlot{address, uint32(len(t.addresses))}
			break
		}
		i = (i + 1) & mask
	}
	if 2*len(t.addresses) > len(t.slots) {
		t.grow()
	}
	return uint32(len(t.addresses) - 1)
}

func (t *addressTable) grow() {
	t.shift--
	t.slots = make([]addressSlot, 2*len(t.slots))
	mask := uint32(len(t.slots) - 1)
	for n, address := range t.addresses {
		i := uint32(hash(address) >> t.shift)
		for t.slots[i].number != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = addressSlot{address, uint32(n + 1)}
	}
}

// hash spreads by the golden ratio; the high bits are the good ones.
func hash(x uint64) uint64 {
	x ^= x >> 32
	return x * 0x9e3779b97f4a7c15
}

// stackArena keeps the frames of all stacks, as numbers of the addressTable, in blocks that never move.
type stackArena struct {
	blocks [][]uint32
}

const arenaBlock = 2 * maxDepth

// stackFrames says where in the arena a stack's frames are: block, position and length, 16 bits each for the last two.
type stackFrames uint64

func (a *stackArena) add(frames []uint32) stackFrames {
	last := len(a.blocks) - 1
	if last < 0 || arenaBlock-len(a.blocks[last]) < len(frames) {
		a.blocks = append(a.blocks, make([]uint32, 0, arenaBlock))
		last++
	}
	at := len(a.blocks[last])
	a.blocks[last] = append(a.blocks[last], frames...)
	return stackFrames(last)<<32 | stackFrames(at)<<16 | stackFrames(len(frames))
}

func (a *stackArena) get(f stackFrames) []uint32 {
	at, n := int(f>>16&0xffff), int(f&0xffff)
	return a.blocks[f>>32][at : at+n : at+n]
}

// entryList is a list of entries that grows without moving.
type entryList struct {
	blocks [][]entry
	length int
}

const entryBlock = 256

func (l *entryList) add(e entry) {
	if l.length%entryBlock == 0 {
		l.blocks = append(l.blocks, make([]entry, entryBlock))
	}
	*l.at(l.length) = e
	l.length++
}

func (l *entryList) at(i int) *entry { return &l.blocks[i/entryBlock][i%entryBlock] }

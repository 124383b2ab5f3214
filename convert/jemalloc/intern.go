package jemalloc

// addressTable gives every distinct address a small number, in order of appearance. It is a plain open-addressing
// table: the parser asks it once for every frame of the file.
type addressTable struct {
	slots     []uint32 // number + 1, 0 for a free slot
	addresses []uint64
	shift     uint
}

func newAddressTable() *addressTable {
	const bits = 12
	return &addressTable{slots: make([]uint32, 1<<bits), shift: 64 - bits}
}

func (t *addressTable) id(address uint64) uint32 {
	mask := uint32(len(t.slots) - 1)
	i := uint32(hash(address) >> t.shift)
	for {
		n := t.slots[i]
		if n == 0 {
			break
		}
		if t.addresses[n-1] == address {
			return n - 1
		}
		i = (i + 1) & mask
	}
	t.addresses = append(t.addresses, address)
	t.slots[i] = uint32(len(t.addresses))
	if 2*len(t.addresses) > len(t.slots) {
		t.grow()
	}
	return uint32(len(t.addresses) - 1)
}

func (t *addressTable) grow() {
	t.shift--
	t.slots = make([]uint32, 2*len(t.slots))
	mask := uint32(len(t.slots) - 1)
	for n, address := range t.addresses {
		i := uint32(hash(address) >> t.shift)
		for t.slots[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = uint32(n + 1)
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

const arenaBlock = 32 << 10

func (a *stackArena) add(frames []uint32) []uint32 {
	last := len(a.blocks) - 1
	if last < 0 || cap(a.blocks[last])-len(a.blocks[last]) < len(frames) {
		a.blocks = append(a.blocks, make([]uint32, 0, max(arenaBlock, len(frames))))
		last++
	}
	b := a.blocks[last]
	start := len(b)
	b = append(b, frames...)
	a.blocks[last] = b
	return b[start:len(b):len(b)]
}

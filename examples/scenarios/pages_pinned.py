"""Many small blocks, of which one in eight lives on and pins its page: the live heap is flat, the process is not smaller."""
import heapwire

SMALL, BLOCKS = 1000, 150000
heapwire.dump()
blocks = [bytearray(SMALL) for _ in range(BLOCKS)]
heapwire.dump()
survivors = blocks[::8]
del blocks
heapwire.dump()
heapwire.dump()

"""Memory that no malloc has ever seen: anonymous pages from mmap, and a shared mapping beside them where asked for."""
import mmap
import sys

import heapwire

SIZE = 150 << 20
heapwire.dump()
flags = mmap.MAP_SHARED if sys.argv[1:] == ["shared"] else mmap.MAP_PRIVATE
pages = mmap.mmap(-1, SIZE, flags=flags | mmap.MAP_ANONYMOUS)
for at in range(0, SIZE, mmap.PAGESIZE):
    pages[at] = 1
heapwire.dump()

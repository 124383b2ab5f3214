"""A list of block numbers that nobody drains: one small int a loop, under Python's own allocator."""
import heapwire

new_block_ids = []


def schedule(first, loops):
    for i in range(first, first + loops):
        new_block_ids.append(i + 1000)  # LEAK: blocks


LOOPS = 300000
for number in range(4):
    schedule(number * LOOPS, LOOPS)
    heapwire.dump()

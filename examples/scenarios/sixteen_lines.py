import random
import heapwire

random.seed(int(__import__("sys").argv[1]))
kept, cache = [], {}


def handle(size):
    kept.append(bytearray(size))  # LEAK: kept
    cache[random.randrange(300)] = bytearray(random.randrange(20000, 60000))


for step in range(3):
    while len(kept) * 4000 < 32e6 * step + 4e6:
        handle(random.randrange(2000, 6000))
    heapwire.dump()

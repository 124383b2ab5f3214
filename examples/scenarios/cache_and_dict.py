"""Two caches fill at the same pace: one has a bound, the other has none."""
import heapwire

BOUND = 600
bounded, unbounded = {}, {}


def tokenize(word):
    if len(bounded) >= BOUND:
        bounded.pop(next(iter(bounded)))
    bounded[word] = bytearray(20000)  # DECOY: bounded


def remember(word):
    unbounded[word] = bytearray(20000)  # LEAK: unbounded


for dump in range(8):
    for number in range(200):
        tokenize((dump, number))
        remember((dump, number))
    heapwire.dump()

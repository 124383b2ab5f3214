"""A native library loses memory at each call; the line that calls it is Python's."""
import ctypes
import sys

import heapwire

library = ctypes.CDLL(sys.argv[1])


def forward(calls):
    for _ in range(calls):
        library.eager_call()  # LEAK: calls


for _ in range(4):
    forward(8000)
    heapwire.dump()

"""Leaks through malloc itself, on any Python from 2.7 on: bytes must be counted, with native frames only where the
interpreter's frames are not understood."""
import ctypes
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402


def main(blocks, path):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    for _ in range(blocks):
        libc.malloc(truth.BLOCK)
    truth.tell(path, {"malloc": (blocks, truth.BLOCK)})


main(256, sys.argv[1] if len(sys.argv) > 1 else "")

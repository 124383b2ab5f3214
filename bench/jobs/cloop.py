"""malloc and free of 100 to 163 bytes in C, in as many threads as the argument says. Built by bench from cloop.c."""
import ctypes
import os

LIBRARY = ctypes.CDLL(os.environ["BENCH_CLOOP"])
LIBRARY.loop.argtypes = [ctypes.c_long, ctypes.c_int]


def work(scale, threads=1):
    if LIBRARY.loop(int(10000000 * scale), threads):
        raise OSError("no threads")

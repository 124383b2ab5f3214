"""What one capture takes under so many frames of Python, each of a function of its own: capture.py FRAMES… prints JSON, frames to
nanoseconds. Runs under the library with a window into its hook (shim/test/c/capture.c)."""
import ctypes
import json
import sys

capture_ns = ctypes.CDLL(None).heapwire_test_capture_ns
capture_ns.argtypes, capture_ns.restype = [ctypes.c_long, ctypes.c_int], ctypes.c_double

CALLS, ROUNDS = 2000, 50


def measured(frames):
    """The module and this function are two of them."""
    call = capture_ns
    for i in range(frames - 2):
        names = {"call": call}
        exec("def function_%d(*arguments):\n    return call(*arguments)\n" % i, names)
        call = names["function_%d" % i]
    return call(CALLS, ROUNDS)


print(json.dumps({n: measured(int(n)) for n in sys.argv[1:]}))

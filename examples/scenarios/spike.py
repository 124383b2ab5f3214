"""A sharded save holds everything twice for a moment. It lets go as soon as a dump has seen it, which something must set off:
the next one by the clock is an hour away."""
import glob
import os
import time

PARAMETERS = [bytearray(100000) for _ in range(200)]


def save():
    buffers = [bytearray(200000) for _ in range(700)]  # LEAK: buffers
    pattern = os.path.join(os.environ["HEAPWIRE_SPOOL"], "*", "*.jump.heap")
    deadline = time.monotonic() + 60
    while not glob.glob(pattern):
        if time.monotonic() > deadline:
            raise SystemExit("no dump of the jump")
        time.sleep(0.05)
    return len(buffers)


def dump(reason):
    import ctypes
    assert ctypes.CDLL(None).heapwire_dump() == 0, reason


dump("before")
save()
dump("after")

"""Small objects of many kinds that are kept, each kind by a function of its own.

usage: kinds.py truth|leak|healthy MEBIBYTES
       kinds.py rounds MEBIBYTES ROUNDS [KIND ...]

truth: prints, as JSON, how many bytes of pymalloc's each function took: by pymalloc's own statistics (sys._debugmallocstats), so
       nothing may stand in front of it. leak: keeps as much, and ends. healthy: does the same work and keeps the last 1000 of each.
rounds: each kind by itself again and again: keeps it, asks for a dump, lets it go. Prints a line "round kind" a dump.
"""
import array
import ctypes
import json
import os
import re
import sys
import tempfile


class Plain:
    pass


class Slotted:
    __slots__ = ("a", "b", "c")


def stays_alive():
    kept = 1
    yield kept


# Each keeps n objects in `keep`, which is long enough.

def bytes_small(keep, n):
    for i in range(n):
        keep[i % len(keep)] = bytes(10)


def bytes_middle(keep, n):
    for i in range(n):
        keep[i % len(keep)] = bytes(150)


def bytes_large(keep, n):
    for i in range(n):
        keep[i % len(keep)] = bytes(470)


def str_joined(keep, n):
    for i in range(n):
        keep[i % len(keep)] = "".join(["part %d" % i] * 12)


def str_grown(keep, n):
    for i in range(n):
        s = ""
        for k in range(20):
            s += "abc%d" % k
        keep[i % len(keep)] = s


def str_formatted(keep, n):
    for i in range(n):
        keep[i % len(keep)] = "<%s>" % (i * 10 ** 60)


def lists(keep, n):
    for i in range(n):
        keep[i % len(keep)] = [None, None, None, None]


def lists_grown(keep, n):
    for i in range(n):
        some = keep[i % len(keep)] = []
        for _ in range(12):
            some.append(None)


def tuples(keep, n):
    for i in range(n):
        keep[i % len(keep)] = (i, None, None)


def dicts(keep, n):
    for i in range(n):
        keep[i % len(keep)] = {"a": None}


def sets(keep, n):
    for i in range(n):
        keep[i % len(keep)] = {None, True}


def slotted(keep, n):
    for i in range(n):
        keep[i % len(keep)] = Slotted()


def plain(keep, n):
    for i in range(n):
        o = keep[i % len(keep)] = Plain()
        o.a = o.b = None


def closures(keep, n):
    for i in range(n):
        keep[i % len(keep)] = lambda: i  # noqa: B023


def generators(keep, n):
    for i in range(n):
        g = keep[i % len(keep)] = stays_alive()
        next(g)


def buffers(keep, n):
    for i in range(n):
        keep[i % len(keep)] = bytearray(200)


def arrays(keep, n):
    for i in range(n):
        keep[i % len(keep)] = array.array("d", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))


# How many make about a mebibyte.
KINDS = {
    bytes_small: 21800, bytes_middle: 5450, bytes_large: 2080, str_joined: 6500, str_grown: 7200, str_formatted: 8700,
    lists: 10900, lists_grown: 5000, tuples: 10900, dicts: 4500, sets: 4600, slotted: 16300, plain: 12000, closures: 5400,
    generators: 4800, buffers: 3600, arrays: 7200,
}


def in_use():
    """Bytes of the blocks that pymalloc has given."""
    with tempfile.TemporaryFile() as f:
        sys.stderr.flush()
        keep = os.dup(2)
        os.dup2(f.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(keep, 2)
        os.close(keep)
        f.seek(0)
        text = f.read().decode("ascii", "replace")
    rows = re.findall(r"^ *\d+ +(\d+) +\d+ +(\d+) +\d+$", text, re.M)
    if not rows:
        sys.exit("pymalloc's statistics are not there")
    return sum(int(size) * int(blocks) for size, blocks in rows)


def room(n):
    return [None] * n


mode, mebibytes = sys.argv[1], float(sys.argv[2])
places = []
if mode == "rounds":
    dump = ctypes.CDLL(None).heapwire_dump
    kinds = [k for k in KINDS if k.__name__ in sys.argv[4:] or not sys.argv[4:]]
    for i in range(int(sys.argv[3])):
        for kind in kinds:
            n = int(KINDS[kind] * mebibytes)
            places = room(n)
            kind(places, n)
            if dump():
                sys.exit("no dump")
            print(i, kind.__name__, flush=True)
            places = None
    sys.exit()
truth = {}
for kind in KINDS:
    n = int(KINDS[kind] * mebibytes)
    places.append(room(1000 if mode == "healthy" else n))
    before = in_use() if mode == "truth" else 0
    kind(places[-1], n)
    if mode == "truth":
        truth[kind.__name__] = in_use() - before
if mode == "truth":
    print(json.dumps(truth))

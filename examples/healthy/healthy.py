"""Ten programs without a leak, each of which looks like one at some moment: python healthy.py NAME. Eight dumps each."""
import sys

import heapwire

MB = 1 << 20
held = {}


def blocks(size, n):
    return [bytearray(size) for _ in range(n)]


def churn(i):
    held["work"] = blocks(3000, 8000)


def saw_tooth(i):
    held.setdefault("pages", []).extend(blocks(40000, 300))
    if i % 3 == 2:
        held["pages"].clear()


def bounded_cache(i):
    cache = held.setdefault("cache", {})
    for n in range(1500):
        cache[(i * 1500 + n) % 2500] = bytearray(8000)


def loaded_once(i):
    if i == 1:
        held["model"] = blocks(1 * MB, 60)


def loaded_late(i):
    if i == 7:
        held["model"] = blocks(100000, 500)


def one_spike(i):
    held["copy"] = blocks(200000, 400) if i == 4 else []


def imports(i):
    if i < 2:
        for name in ["asyncio", "unittest", "xml.dom.minidom", "sqlite3", "email.mime.text", "http.server"][i::2]:
            try:
                __import__(name)
            except ImportError:
                pass


def handed_over(i):
    old = held.setdefault("old", blocks(50000, 800))
    held.setdefault("new", []).extend(blocks(50000, 100))
    del old[-100:]


def shrinks(i):
    held.setdefault("queue", blocks(50000, 800))
    del held["queue"][-90:]


def logs_rotate(i):
    log = held.setdefault("log", [])
    log.extend(str(n) * 200 for n in range(4000))
    del log[:-6000]


NAMES = [churn, saw_tooth, bounded_cache, loaded_once, loaded_late, one_spike, imports, handed_over, shrinks, logs_rotate]

if __name__ == "__main__":
    program = {f.__name__: f for f in NAMES}[sys.argv[1]]
    for i in range(8):
        program(i)
        heapwire.dump()

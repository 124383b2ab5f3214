"""A request loop with two leaks and one healthy cache, in plain Python.

    python leak_basic.py [--rounds 40] [--pause 0.25] [--blocks 32]

What the profile must show
    remember_upload   line marked `LEAK: uploads`   bytearrays of 64 KiB: grow in every round, never shrink
    remember_row      line marked `LEAK: rows`      dicts of 1000 keys: the same
    render            line marked `DECOY: pages`    a cache that fills up and is emptied: busy, but not a grower

Both leaks are two calls below the loop: serve > handle > remember_…. The last line of output is the truth
(see truth.py), what the program itself counted, for comparison with the profile.
"""
import argparse
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

COLUMNS = tuple("column %d" % i for i in range(1000))
PAGES_KEPT_FOR = 5  # rounds

uploads = []
rows = []
pages = {}


def remember_upload():
    uploads.append(bytearray(truth.BLOCK))  # LEAK: uploads


def remember_row():
    rows.append(dict.fromkeys(COLUMNS))  # LEAK: rows


def render(key):
    if key not in pages:
        pages[key] = bytearray(truth.BLOCK)  # DECOY: pages
    return pages[key]


def handle(request):
    remember_upload()
    remember_row()
    return render(request)


def serve(rounds, blocks, pause, cache_expires):
    for number in range(1, rounds + 1):
        for i in range(blocks):
            handle((number, i))
        if pause:
            time.sleep(pause)
        if cache_expires and number % PAGES_KEPT_FOR == 0:
            pages.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds to serve, a multiple of 5")
    parser.add_argument("--blocks", type=int, default=32, help="requests a round: each leaks one bytearray and one dict")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between rounds")
    parser.add_argument("--cache-never-expires", action="store_true", help="turn the decoy into a third leak")
    parser.add_argument("--truth", default="", help="append the truth to this file instead of printing it")
    parser.add_argument("--hold", action="store_true", help="then keep everything until standard input ends")
    args = parser.parse_args()

    serve(args.rounds, args.blocks, args.pause, not args.cache_never_expires)
    truth.tell(args.truth, {
        "uploads": (len(uploads), sys.getsizeof(uploads[0]) - sys.getsizeof(bytearray())),
        "rows": (len(rows), sys.getsizeof(rows[0]) - sys.getsizeof({})),  # the key table; the rest is a small object
        "pages": (len(pages), truth.BLOCK),
    })
    truth.hold(args.hold)


if __name__ == "__main__":
    main()

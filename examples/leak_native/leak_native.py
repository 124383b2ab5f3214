"""A C extension that leaks; the profile must name both the C function and the Python line that called it.

    python build.py && python leak_native.py [--blocks 512] [--module FOLDER]

What the profile must show, innermost frame first
    leak_without_lock, released   under ingest, line marked `LEAK: released`   the lock of Python is released here
    leak_with_lock, held          under parse, line marked `LEAK: held`        and held here
    leak_on_own_thread            under no Python line at all                  a thread Python knows nothing of

The last line of output is the truth (see truth.py).
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, os.pardir))
import truth  # noqa: E402


def ingest(leaky, blocks):
    leaky.released(truth.BLOCK, blocks)  # LEAK: released


def parse(leaky, blocks):
    leaky.held(truth.BLOCK, blocks)  # LEAK: held


def offload(leaky, blocks):
    leaky.threaded(truth.BLOCK, blocks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=512, help="blocks of 64 KiB to leak at each place")
    parser.add_argument("--module", default=HERE, help="folder build.py put the extension in")
    parser.add_argument("--truth", default="", help="append the truth to this file instead of printing it")
    parser.add_argument("--hold", action="store_true", help="then keep everything until standard input ends")
    args = parser.parse_args()

    sys.path.insert(0, args.module)
    import leaky
    ingest(leaky, args.blocks)
    parse(leaky, args.blocks)
    offload(leaky, args.blocks)
    truth.tell(args.truth, {
        "released": (args.blocks, truth.BLOCK),
        "held": (args.blocks, truth.BLOCK),
        "threaded": (args.blocks, truth.BLOCK),
    })
    truth.hold(args.hold)


if __name__ == "__main__":
    main()

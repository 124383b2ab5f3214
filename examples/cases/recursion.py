"""A leak 2000 calls deep: the line must be found, the root of the stack must be there, frames between may be left out."""
import argparse
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

DEPTH = 2000

kept = []


def descend(depth, blocks):
    if depth:
        descend(depth - 1, blocks)
        return
    for _ in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: descend


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--truth", default="")
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()
    sys.setrecursionlimit(DEPTH + 200)
    descend(DEPTH, args.blocks)
    truth.tell(args.truth, {"descend": (args.blocks, truth.BLOCK)})
    truth.hold(args.hold)


if __name__ == "__main__":
    main()

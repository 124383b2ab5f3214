"""Threads that allocate at the same time: two that end, two that stay, and one that only churns.

Every block must be found at its thread's own line, whether or not the thread still lives.
"""
import argparse
import os
import sys
import threading

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

kept = []


def ends(blocks):
    for _ in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: ends


def stays(blocks, ready, release):
    for _ in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: stays
    ready.release()
    release.wait()


def churns(stop):
    window = [None] * 8
    i = 0
    while not stop.is_set():
        window[i % len(window)] = bytearray(truth.BLOCK)
        i += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--truth", default="")
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()

    ready, release, stop = threading.Semaphore(0), threading.Event(), threading.Event()
    churn = threading.Thread(target=churns, args=(stop,))
    short = [threading.Thread(target=ends, args=(args.blocks,)) for _ in range(2)]
    long = [threading.Thread(target=stays, args=(args.blocks, ready, release)) for _ in range(2)]
    for thread in [churn] + short + long:
        thread.start()
    for thread in short:
        thread.join()
    for _ in long:
        ready.acquire()
    stop.set()
    churn.join()
    truth.tell(args.truth, {"ends": (2 * args.blocks, truth.BLOCK), "stays": (2 * args.blocks, truth.BLOCK)})
    truth.hold(args.hold)
    release.set()
    for thread in long:
        thread.join()


if __name__ == "__main__":
    main()

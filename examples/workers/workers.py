"""Four multiprocessing workers, one of them leaks.

    python workers.py [--start-method fork|spawn|forkserver] [--blocks 256]

What the profiles must show
    the parent        load_model, line marked `LEAK: model`, allocated before the workers start
    every worker      its own folder; nothing of load_model, also where it was forked and inherited the memory
    worker 2          collect, line marked `LEAK: collect`: the leak
    other workers     nothing of collect

So the processes add up: what was allocated once is counted once. Each process tells its own truth (see truth.py).
"""
import argparse
import multiprocessing
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

WORKERS = 4
LEAKING = 2

model = []
collected = []


def load_model(blocks):
    for _ in range(blocks):
        model.append(bytearray(truth.BLOCK))  # LEAK: model


def collect(blocks):
    for _ in range(blocks):
        collected.append(bytearray(truth.BLOCK))  # LEAK: collect


def work(blocks):
    for _ in range(blocks):
        bytearray(truth.BLOCK)


def worker(number, blocks, truth_file, ready, release):
    work(blocks)
    if number == LEAKING:
        collect(blocks)
    truth.tell(truth_file, {"collect": (len(collected), truth.BLOCK)}, last=False)
    ready.release()
    release.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start-method", choices=multiprocessing.get_all_start_methods(), default="fork")
    parser.add_argument("--blocks", type=int, default=256, help="blocks of 64 KiB: the model's, and the leak's")
    parser.add_argument("--truth", default="", help="append the truth to this file instead of printing it")
    parser.add_argument("--hold", action="store_true", help="then keep everything until standard input ends")
    args = parser.parse_args()

    load_model(args.blocks)
    context = multiprocessing.get_context(args.start_method)
    ready, release = context.Semaphore(0), context.Event()
    workers = [
        context.Process(target=worker, args=(n, args.blocks, args.truth, ready, release)) for n in range(WORKERS)
    ]
    for process in workers:
        process.start()
    for _ in workers:
        ready.acquire()
    truth.tell(args.truth, {"model": (len(model), truth.BLOCK)})
    truth.hold(args.hold)
    release.set()
    for process in workers:
        process.join()
    sys.exit(any(process.exitcode for process in workers))


if __name__ == "__main__":
    main()

"""Leaks inside generators, delegated generators, coroutines and asynchronous generators, and inside a method.

Each must be found at its own line, with the consumer that resumed it among its callers.
"""
import argparse
import asyncio
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

kept = []


def produce(blocks):
    for i in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: produce
        yield i


def inner(blocks):
    for i in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: inner
        yield i


def delegate(blocks):
    yield from inner(blocks)


async def fetch():
    await asyncio.sleep(0)
    kept.append(bytearray(truth.BLOCK))  # LEAK: fetch


async def stream(blocks):
    for i in range(blocks):
        await asyncio.sleep(0)
        kept.append(bytearray(truth.BLOCK))  # LEAK: stream
        yield i


async def consume_async(blocks):
    for _ in range(blocks):
        await fetch()
    async for _ in stream(blocks):
        pass


class Store:
    def put(self):
        kept.append(bytearray(truth.BLOCK))  # LEAK: put


def consume(blocks):
    sum(produce(blocks))
    for _ in delegate(blocks):
        pass
    store = Store()
    for _ in range(blocks):
        store.put()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(consume_async(blocks))
    loop.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--truth", default="")
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()
    consume(args.blocks)
    truth.tell(args.truth, {s: (args.blocks, truth.BLOCK) for s in ("produce", "inner", "fetch", "stream", "put")})
    truth.hold(args.hold)


if __name__ == "__main__":
    main()

"""Random chains of Python and C calls: with HEAPWIRE_STACKS=full the captured stack has all of them, in their order.

Run with libheapwire_test.so preloaded; argv[1] is programs/chain.c as a library.
"""
import ctypes
import random
import sys

between = ctypes.CDLL(sys.argv[1])
capture = ctypes.CDLL(None).heapwire_test_capture
SIZE = 1 << 20
buffer = ctypes.create_string_buffer(SIZE)
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int)
COUNT = 200


def p1(rest):
    return follow(rest)


def p2(rest):
    for _ in (None,):
        return follow(rest)


def p3(rest):
    return next(g1(rest))


def g1(rest):
    yield follow(rest)


class Falling:
    def __init__(self, rest):
        self.rest = rest

    def __del__(self):
        follow(self.rest)


def d1(rest):
    falling = Falling(rest)
    del falling
    return 0


def follow(rest):
    if not rest:
        capture(buffer, SIZE)
        return 0
    step = rest[0]
    if step.startswith("between"):
        return getattr(between, step)(CALLBACK(lambda: follow(rest[1:])))
    return globals()[step](rest[1:])


def main():
    rng = random.Random(7)
    steps = ["p1", "p2", "p3", "d1", "between_a", "between_b", "between_c"]
    wanted = {"p1", "p2", "p3", "g1", "d1", "__del__", "between_a", "between_b", "between_c"}
    wrong = 0
    for _ in range(COUNT):
        chain = [rng.choice(steps) for _ in range(rng.randrange(1, 6))]
        follow(chain)
        got = []
        for line in buffer.value.decode().splitlines():
            name = line[2:].split("\t")[0] if line[0] == "P" else line.split(" ")[-1]
            name = name.split(".")[-1]
            if name in wanted:
                got.insert(0, name)
        want = []
        for step in chain:
            want += {"p3": ["p3", "g1"], "d1": ["d1", "__del__"]}.get(step, [step])
        if got != want:
            wrong += 1
            print("WRONG", "->".join(want), "captured", "->".join(got))
    print(sys.version.split()[0], COUNT - wrong, "right", wrong, "wrong")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())

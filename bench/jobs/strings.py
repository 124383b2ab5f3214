"""Strings of 140 to 220 bytes, 20 000 of them alive, and one of 3.6 MB that they are joined to."""


def work(scale):
    for _ in range(max(1, int(60 * scale))):
        parts = ["x" * (140 + i % 80) for i in range(20000)]
        "".join(parts)

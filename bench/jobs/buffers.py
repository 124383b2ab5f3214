"""Buffers of 1 to 61 KB, 64 of them alive, none written to beyond what bytearray does."""


def work(scale):
    window = [None] * 64
    for i in range(int(150000 * scale)):
        window[i & 63] = bytearray(1000 + (i * 7919) % 60000)

"""Leaks until it is killed."""
import os, time

kept = []


def leak_here():
    kept.append(bytearray(100000))


print(os.getpid(), flush=True)
while True:
    leak_here()
    time.sleep(0.001)

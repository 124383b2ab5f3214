"""A loader stages batches in pinned memory, a little above a power of two each, and holds 129.5 MiB in 256. The device is a model
of one with PyTorch's interface, as in device_oom; with --real it is the machine's own, by the installed torch."""
import functools
import os
import sys

import heapwire

real = "--real" in sys.argv
if not real:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shim", "python", "test", "standin"))
import torch

empty = functools.partial(torch.empty, dtype=torch.uint8) if real else torch.empty
staged, weights = [], []


def stage(size):
    staged.append(empty(size, pin_memory=True))  # LEAK: staging


def keep(size):
    weights.append(empty(size, pin_memory=True))


on_the_device = empty(1 << 20, device="cuda:0")
for batch in range(16):
    stage((8 << 20) + (96 << 10))
for layer in range(4):
    keep(16 << 20)
keep(3 << 20)
print("a snapshot" if heapwire.snapshot("staged") else heapwire.status()["errors"])

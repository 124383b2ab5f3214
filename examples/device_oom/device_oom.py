# SPDX-License-Identifier: Apache-2.0
"""A training loop that keeps what it should give back, until the device has no memory left.

    bin/heapwire run -- python3 examples/device_oom/device_oom.py

runs anywhere: the device is a model of one, with 1 GiB of memory and PyTorch's interface. With --real it is the machine's
own, by the installed torch; the loop then goes on until that is full.
"""

import argparse
import functools
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
STANDIN = os.path.join(HERE, "..", "..", "shim", "python", "test", "standin")

losses = []


def forward(empty, batch):
    activations = empty(batch * (12 << 20))
    loss = empty(batch * (5 << 20))
    return activations, loss


def train(empty, batch):
    parameters = empty(200 << 20)
    for step in range(1, 1 << 20):
        activations, loss = forward(empty, batch)
        losses.append(loss)  # the whole loss, not its value: nothing that made it is ever freed
        del activations
        over(step)
    del parameters


def over(step):
    """Tells heapwire, if it is there, what an optimizer would tell it."""
    try:
        import heapwire
    except ImportError:
        return
    heapwire.step(step)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    arguments.add_argument("--real", action="store_true", help="use the installed torch and the machine's device")
    arguments.add_argument("--batch", type=int, default=8)
    arguments = arguments.parse_args()
    if not arguments.real:
        sys.path.insert(0, STANDIN)
    import torch

    empty = functools.partial(torch.empty, device="cuda:0")
    if arguments.real:
        empty = functools.partial(empty, dtype=torch.uint8)
    try:
        train(empty, arguments.batch)
    except torch.OutOfMemoryError as e:
        print("after %d steps: %s" % (len(losses), e))
        sys.exit(1)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""heapwire inside a Python program. Everything here is a no-op, and says so by its result, where the shim is not loaded."""

__all__ = ["dump", "snapshot", "status", "step"]


def dump(reason=""):
    """Take a dump of the live heap now and wait until it lies in the spool.

    The reason goes into the dump as what set it off. Returns True if the dump lies there. Without the shim, or in a process that
    it does not profile, returns False. Raises OSError if the dump could not be written: the errno says why.
    """
    from heapwire import _shim

    return _shim.dump(str(reason))


def snapshot(reason="api"):
    """Take a snapshot of the device memory that torch and torch_npu manage, and put it into the spool.

    Waits for no stream. Returns True if at least one lies there; False without the shim, without an initialised device, or
    where none could be taken (status() says why).
    """
    from heapwire import _arm

    return _arm.snapshot(str(reason))


def step(n=None):
    """Say that a training step is over: step n, or the one after the last. From the first call on, steps of optimizers are no
    longer counted."""
    from heapwire import _arm

    _arm.step(n)


def status():
    """What is going on here, as a dict: whether the process is profiled, its step, what is armed for each kind of device, the
    snapshots taken, and the last errors that were kept from the program."""
    from heapwire import _arm

    return _arm.status()

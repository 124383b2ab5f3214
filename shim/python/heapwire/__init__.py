"""heapwire inside a Python program. Everything here is a no-op, and says so by its result, where the shim is not loaded."""

import ctypes
import os

__all__ = ["dump"]

_library = ctypes.CDLL(None)


def dump():
    """Take a dump of the live heap now and wait until it lies in the spool.

    Returns True if it does. Without the shim, or in a process that it does not profile, returns False. Raises OSError if the
    dump could not be written: the errno says why.
    """
    take = getattr(_library, "heapwire_dump", None)
    if take is None:
        return False
    error = take()
    if error == 3:  # ESRCH: the shim is there, and this process is not profiled
        return False
    if error:
        raise OSError(error, os.strerror(error), "heapwire dump")
    return True

# SPDX-License-Identifier: Apache-2.0
"""What the library in the process offers (shim/src/api.c). Absent: this process is not profiled."""

import errno
import os

try:
    import ctypes

    _library = ctypes.CDLL(None)
except Exception:  # a Python without ctypes, or without libffi
    _library = None


def _function(name, result, *args):
    f = getattr(_library, name, None)
    if f is not None:
        f.restype = result
        f.argtypes = args
    return f


if _library is not None:
    _dump = _function("heapwire_dump_why", ctypes.c_int, ctypes.c_char_p)
    _profiled = _function("heapwire_profiled", ctypes.c_int)
    _place = _function("heapwire_place", ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    _step = _function("heapwire_step", None, ctypes.c_uint64)
else:
    _dump = _profiled = _place = _step = None


def profiled():
    return _profiled is not None and _profiled() == 0


def dump(why):
    if _dump is None:
        return False
    error = _dump(why.encode("utf-8", "replace"))
    if error == errno.ESRCH:
        return False
    if error:
        raise OSError(error, os.strerror(error), "heapwire dump")
    return True


def place():
    """The beginning of a new file's path: the process's folder and a number."""
    if _place is None:
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "heapwire spool")
    path = ctypes.create_string_buffer(8192)
    error = _place(path, len(path))
    if error:
        raise OSError(error, os.strerror(error), "heapwire spool")
    return os.fsdecode(path.value)


def step(n):
    if _step is not None and 0 <= n < 1 << 63:
        _step(n)

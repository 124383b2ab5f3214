# SPDX-License-Identifier: Apache-2.0
import collections as _collections
import functools as _functools
import os as _os

__version__ = _os.environ.get("STANDIN_TORCH", "2.14") + ".0+standin"
release = tuple(int(n) for n in __version__.split("+")[0].split(".")[:2])
counts = {"initialised": [], "recorded": [], "observers": 0}

from torch import _C  # noqa: E402
from torch import compiler  # noqa: E402,F401
from torch import cuda  # noqa: E402,F401
from torch import distributed  # noqa: E402,F401
from torch import optim  # noqa: E402,F401

OutOfMemoryError = _C.OutOfMemoryError
_Device = _collections.namedtuple("device", "type index")


class Tensor:
    """Bytes on a device or in pinned host memory, given back when it dies."""

    def __init__(self, size, device="cuda:0", pin_memory=False):
        kind, _, index = ("cpu" if pin_memory else device).partition(":")
        self.device = _Device(kind, int(index or 0))
        self._size = size
        if pin_memory:
            self._address = _C.host_allocator.malloc(size)
            self._free = _C.host_allocator.free
            return
        allocator = _C.allocator if kind == "cuda" else _npu()
        self._address = allocator.malloc(self.device.index, size)
        self._free = _functools.partial(allocator.free, self.device.index)

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return self._address

    def nbytes(self):
        return self._size

    def __del__(self):
        free = getattr(self, "_free", None)
        if free is not None:
            free(self._address)


def _npu():
    import torch_npu

    return torch_npu._C.allocator


def empty(size, device="cuda:0", pin_memory=False):
    return Tensor(size, device, pin_memory)


if _os.environ.get("STANDIN_AUTOLOAD"):
    import torch_npu  # noqa: E402,F401  2.5 and later import a device's package at the end of their own import

# SPDX-License-Identifier: Apache-2.0
import os as _os

__version__ = _os.environ.get("STANDIN_TORCH", "2.12") + ".0+standin"
release = tuple(int(n) for n in __version__.split("+")[0].split(".")[:2])
counts = {"initialised": [], "recorded": [], "observers": 0}

from torch import _C  # noqa: E402
from torch import compiler  # noqa: E402,F401
from torch import cuda  # noqa: E402,F401
from torch import distributed  # noqa: E402,F401
from torch import optim  # noqa: E402,F401

OutOfMemoryError = _C.OutOfMemoryError


class Tensor:
    """Bytes on a device, given back when it dies."""

    def __init__(self, size, device="cuda:0"):
        kind, _, index = device.partition(":")
        self._allocator = _C.allocator if kind == "cuda" else _npu()
        self._index = int(index or 0)
        self._address = self._allocator.malloc(self._index, size)

    def __del__(self):
        address = getattr(self, "_address", None)
        if address is not None:
            self._allocator.free(self._index, address)


def _npu():
    import torch_npu

    return torch_npu._C.allocator


def empty(size, device="cuda:0"):
    return Tensor(size, device)


if _os.environ.get("STANDIN_AUTOLOAD"):
    import torch_npu  # noqa: E402,F401  2.5 and later import a device's package at the end of their own import

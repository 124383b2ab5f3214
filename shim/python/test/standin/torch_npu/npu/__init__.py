# SPDX-License-Identifier: Apache-2.0
import collections
import os

from torch._lazy import Lazy
from torch_npu import _C


class _DeferredNpuCallError(Exception):
    pass


_lazy = Lazy("npu", _DeferredNpuCallError)
_lazy.allocator = _C.allocator


def is_initialized():
    return _lazy.is_initialized()


def _lazy_call(cb):
    _lazy.call(cb)


def _lazy_init():
    first = not is_initialized() and not _C.allocator.initialised
    late = bool(os.environ.get("STANDIN_LATE"))
    if first:
        _C.allocator.initialised = True
        if not late:
            _C._npu_init()
    _lazy.init()
    if first and late:
        _C._npu_init()


def current_device():
    _lazy_init()
    return 0


def get_device_properties(device):
    return collections.namedtuple("Properties", "name total_memory")("stand-in", _C.allocator.capacity)


from torch_npu.npu import memory  # noqa: E402,F401

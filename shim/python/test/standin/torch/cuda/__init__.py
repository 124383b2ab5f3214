# SPDX-License-Identifier: Apache-2.0
import collections

from torch import _C
from torch._lazy import Lazy


class DeferredCudaCallError(Exception):
    pass


_lazy = Lazy("cuda", DeferredCudaCallError)
_lazy.allocator = _C.allocator


def is_initialized():
    return _lazy.is_initialized()


def _lazy_call(callable, **kwargs):
    _lazy.call(callable)


def _lazy_init():
    _lazy.init()


def init():
    _lazy_init()


def current_device():
    _lazy_init()
    return 0


def get_device_properties(device):
    _lazy_init()
    return collections.namedtuple("Properties", "name total_memory")("stand-in", _C.allocator.capacity)


from torch.cuda import memory  # noqa: E402,F401
from torch.cuda.memory import memory_snapshot, memory_stats, set_per_process_memory_fraction  # noqa: E402,F401

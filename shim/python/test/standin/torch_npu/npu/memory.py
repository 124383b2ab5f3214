# SPDX-License-Identifier: Apache-2.0
import collections
import inspect
import sys

import torch
import torch_npu
from torch_npu import _C


def _record_memory_history_impl(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
    torch.counts["recorded"].append(dict(enabled=enabled, context=context, stacks=stacks, max_entries=max_entries))
    torch_npu.npu._lazy_init()
    _C.allocator.record(enabled, context, stacks, max_entries)


def _record_memory_history(enabled="all", *args, **kwargs):
    return _record_memory_history_impl(enabled, *args, **kwargs)


_record_memory_history.__signature__ = inspect.signature(_record_memory_history_impl)


def _snapshot(device=None):
    return _C.allocator.snapshot()


def memory_snapshot():
    return _C.allocator.snapshot()["segments"]


def memory_stats(device=None):
    return collections.OrderedDict(sorted(_C.allocator.figures(device or 0).items()))

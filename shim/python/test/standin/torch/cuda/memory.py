# SPDX-License-Identifier: Apache-2.0
import collections
import inspect
import sys

import torch
from torch import _C


def _noted(**arguments):
    torch.counts["recorded"].append(arguments)


if torch.release < (2, 1):

    def _record_memory_history(
        enabled,
        record_context=True,
        trace_alloc_max_entries=1,
        trace_alloc_record_context=False,
        device=None,
        record_context_cpp=False,
    ):
        _noted(enabled=enabled, max_entries=trace_alloc_max_entries, stacks="all" if record_context_cpp else "python")
        entries = trace_alloc_max_entries
        _C.allocator.record("all" if enabled else None, "alloc" if record_context else None, "python", entries)

else:

    def _apply(enabled, context, stacks, max_entries, pinned=False, cuda=True):
        _noted(enabled=enabled, context=context, stacks=stacks, max_entries=max_entries, pinned=pinned)
        torch.cuda._lazy_init()
        if cuda:
            _C.allocator.record(enabled, context, stacks, max_entries)
        if pinned or enabled is None:
            _C.host_allocator.record(enabled is not None, context, max_entries)

    if torch.release < (2, 7):

        def _record_memory_history_impl(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
            _apply(enabled, context, stacks, max_entries)

    elif torch.release < (2, 12):

        def _record_memory_history_impl(
            enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None, clear_history=False
        ):
            _apply(enabled, context, stacks, max_entries)

    elif torch.release < (2, 14):

        def _record_memory_history_impl(
            enabled="all",
            context="all",
            stacks="all",
            max_entries=sys.maxsize,
            device=None,
            clear_history=False,
            compile_context=False,
            global_record_annotations=False,
            skip_actions=None,
        ):
            _apply(enabled, context, stacks, max_entries)

    else:

        def _record_memory_history_impl(
            enabled="all",
            context="all",
            stacks="all",
            max_entries=sys.maxsize,
            device=None,
            clear_history=False,
            compile_context=False,
            global_record_annotations=False,
            skip_actions=None,
            record_pinned_host_memory=False,
            record_cuda=True,
        ):
            _apply(enabled, context, stacks, max_entries, pinned=record_pinned_host_memory, cuda=record_cuda)

    def _record_memory_history(enabled="all", *args, **kwargs):
        return _record_memory_history_impl(enabled, *args, **kwargs)

    _record_memory_history.__signature__ = inspect.signature(_record_memory_history_impl)


def _snapshot(device=None):
    return _C._cuda_memorySnapshot(None)


if torch.release >= (2, 12):

    def memory_snapshot(mempool_id=None, include_traces=True):
        return _C._cuda_memorySnapshot((0, 0, include_traces))["segments"]

elif torch.release >= (2, 6):

    def memory_snapshot(mempool_id=None):
        return _C._cuda_memorySnapshot(None)["segments"]

else:

    def memory_snapshot():
        return _C._cuda_memorySnapshot(None)["segments"]


def memory_stats(device=None):
    if not torch.cuda.is_initialized():
        return collections.OrderedDict()
    return collections.OrderedDict(sorted(_C.allocator.figures(device or 0).items()))


if torch.release >= (2, 10):  # older ones have other names, pytorch/pytorch#164412

    def host_memory_stats():
        if not torch.cuda.is_initialized():
            return collections.OrderedDict()
        return collections.OrderedDict(sorted(_C.host_allocator.figures().items()))


def set_per_process_memory_fraction(fraction, device=0):
    torch.cuda._lazy_init()
    _C.allocator.fraction[device] = fraction

# SPDX-License-Identifier: Apache-2.0
import os
import time

import torch
import torch_npu
from torch._allocator import Allocator


def _initialise():
    torch_npu.npu._lazy_init()


allocator = Allocator("npu", torch._C.OutOfMemoryError, _initialise, torch_npu.release)


def _npu_attach_out_of_memory_observer(observer):
    allocator.attach(observer)
    torch.counts["observers"] += 1


def _npu_isHistoryEnabled():
    return allocator.history is not None


def _npu_init():
    """torch_npu's own dumper: an observer of its own, and a ring without a bound."""
    if os.environ.get("OOM_SNAPSHOT_ENABLE", "0") in ("", "0"):
        return

    def dump(*_):
        stamp = time.strftime("%Y%m%d%H%M%S")
        folder = os.environ.get("OOM_SNAPSHOT_PATH", ".")
        with open(os.path.join(folder, "oom_snapshot_%d_%s.pickle" % (os.getpid(), stamp)), "wb"):
            pass

    allocator.observers.append(dump)
    allocator.record("all", "all", "python", (1 << 64) - 1)

# SPDX-License-Identifier: Apache-2.0
import torch
from torch._allocator import Allocator


class OutOfMemoryError(RuntimeError):
    pass


def _initialise():
    torch.cuda._lazy_init()


allocator = Allocator("cuda", OutOfMemoryError, _initialise, torch.release, crashes_early=torch.release < (2, 1))


def _cuda_attach_out_of_memory_observer(observer):
    allocator.attach(observer)
    torch.counts["observers"] += 1


if torch.release >= (2, 1):

    def _cuda_isHistoryEnabled():
        return allocator.history is not None


def _cuda_memorySnapshot(pool):
    return allocator.snapshot(pool is None or len(pool) < 3 or pool[2])

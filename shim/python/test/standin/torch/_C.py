# SPDX-License-Identifier: Apache-2.0
import torch
from torch._allocator import Allocator, stack
from torch._host import HostAllocator


class OutOfMemoryError(RuntimeError):
    pass


def _initialise():
    torch.cuda._lazy_init()


allocator = Allocator("cuda", OutOfMemoryError, _initialise, torch.release, crashes_early=torch.release < (2, 1))
host_allocator = HostAllocator(stack)


def _cuda_attach_out_of_memory_observer(observer):
    allocator.attach(observer)
    torch.counts["observers"] += 1


if torch.release >= (2, 1):

    def _cuda_isHistoryEnabled():
        return allocator.history is not None


def _cuda_memorySnapshot(pool):
    tree = allocator.snapshot(pool is None or len(pool) < 3 or pool[2])
    if torch.release >= (2, 14):
        tree.update(host_allocator.tree())
    return tree


class DisableTorchFunction:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass

# SPDX-License-Identifier: Apache-2.0
"""What was asked for of pinned host memory.

PyTorch's allocator of it rounds a request up to a power of two and notes the rounded size alone, in blocks and in events
(aten/src/ATen/core/CachingHostAllocator.h, pytorch/pytorch@85be33f). The tensors that hold the blocks know what they asked for.
"""

import contextlib
import gc
import sys


def amend(tree):
    """Puts what the program asked for into the snapshot: requested_size of the blocks in use, size of the event that allocated
    them. A block without a tensor in Python stays as it is. Returns how many blocks are in use, and how many were told."""
    segments = tree.get("host_segments") if isinstance(tree, dict) else None
    blocks = {b["address"]: b for s in segments or () for b in s["blocks"] if b["state"] != "inactive"}
    if not blocks:
        return None
    asked = _asked(blocks)
    for address, size in asked.items():
        blocks[address]["requested_size"] = size
    left = set(asked)
    for entry in reversed(tree.get("host_traces") or ()):
        if not left:
            break
        if entry["action"] == "alloc" and entry["addr"] in left:
            left.remove(entry["addr"])
            entry["size"] = asked[entry["addr"]]
    return {"blocks": len(blocks), "asked": len(asked)}


def _asked(blocks):
    """address -> bytes. Of tensors of PyTorch's own two classes alone, and with what overrides functions put aside: nothing of
    the program's is called."""
    torch = sys.modules["torch"]
    tensor = torch.Tensor
    parameter = getattr(getattr(torch, "nn", None), "Parameter", tensor)
    asked = {}
    with getattr(torch._C, "DisableTorchFunction", contextlib.nullcontext)():
        for o in [o for o in gc.get_objects() if type(o) is tensor or type(o) is parameter]:
            try:
                if o.device.type != "cpu":
                    continue
                storage = o.untyped_storage()
                address, size = storage.data_ptr(), storage.nbytes()
            except RuntimeError:  # it has no storage: sparse
                continue
            block = blocks.get(address)
            if block is not None and 0 < size <= block["size"]:
                asked[address] = size
    return asked

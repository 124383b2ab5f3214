# SPDX-License-Identifier: Apache-2.0
"""A model of a caching allocator: a segment of whole 2 MiB granules for each block, kept when the block is freed."""

import itertools
import os
import sys
import threading
import time

GRANULE = 2 << 20
ROUND = 512


def stack():
    """The Python stack, innermost first, without what is torch's own."""
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if os.sep + "torch" + os.sep not in code.co_filename:
            frames.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return frames


class Allocator:
    def __init__(self, kind, error, initialise, release, crashes_early=False):
        self.kind = kind
        self.error = error
        self.initialise = initialise
        self.release = release
        self.crashes_early = crashes_early
        self.capacity = int(os.environ.get("STANDIN_CAPACITY", 1 << 30))
        self.devices = int(os.environ.get("STANDIN_DEVICES", "2"))
        self.initialised = False
        self.mutex = threading.Lock()
        self.observers = []
        self.history = None
        self.context = None
        self.stacks = None
        self.max_entries = 1
        self.fraction = {}
        self.traces = [[] for _ in range(self.devices)]
        self.segments = [{} for _ in range(self.devices)]
        self.stats = [dict.fromkeys(("allocated", "freed", "ooms", "retries"), 0) for _ in range(self.devices)]
        self.addresses = itertools.count(0x7F0000000000, 1 << 30)

    # history

    def record(self, enabled, context, stacks, max_entries):
        with self.mutex:
            self.history = enabled
            self.context = context if enabled else None
            self.stacks = stacks
            self.max_entries = max(1, max_entries if enabled == "all" else 1)
            if enabled is None:
                self.traces = [[] for _ in range(self.devices)]

    def frames(self):
        return None if self.context is None else stack()

    def entry(self, device, action, address, size, frames):
        if self.history != "all":
            return
        entry = {"action": action}
        entry["device_free" if action == "oom" else "addr"] = address
        entry.update({"size": size, "stream": 0})
        if self.kind == "cuda" and self.release >= (2, 2):
            entry["time_us"] = time.time_ns() // 1000
        if self.kind == "cuda" and self.release >= (2, 8):
            entry["compile_context"] = "N/A"
        if self.kind == "cuda" and self.release >= (2, 10):
            entry["user_metadata"] = ""
        if self.kind == "cuda" and self.release >= (2, 12):
            entry["pool_id"] = (0, 0)
        if frames is not None:
            entry["frames"] = frames
        trace = self.traces[device]
        trace.append(entry)
        del trace[: -self.max_entries]

    # allocation

    def used(self, device):
        return sum(s["total"] for s in self.segments[device].values())

    def limit(self, device):
        return int(self.capacity * self.fraction.get(device, 1))

    def malloc(self, device, size):
        self.initialise()
        with self.mutex:
            frames = self.frames()
            rounded = (size + ROUND - 1) // ROUND * ROUND
            total = (rounded + GRANULE - 1) // GRANULE * GRANULE
            if self.used(device) + total > self.limit(device):
                self.stats[device]["retries"] += 1
                for address, segment in list(self.segments[device].items()):
                    if segment["state"] == "inactive":  # the cache is given back
                        del self.segments[device][address]
                        self.entry(device, "segment_free", address, segment["total"], frames)
            if self.used(device) + total <= self.limit(device):
                address = next(self.addresses)
                self.segments[device][address] = {
                    "total": total, "size": rounded, "requested": size, "state": "active_allocated", "frames": frames,
                }
                self.entry(device, "segment_alloc", address, total, frames)
                self.entry(device, "alloc", address, size, frames)
                self.stats[device]["allocated"] += size
                return address
            free = self.capacity - self.used(device)
            self.stats[device]["ooms"] += 1
            self.entry(device, "oom", free, rounded, frames)
        for observer in self.observers:
            observer(device, total, self.limit(device), free)  # what this raises replaces the error below
        raise self.error("%s out of memory. Tried to allocate %d bytes" % (self.kind.upper(), size))

    def free(self, device, address):
        with self.mutex:
            segment = self.segments[device].get(address)
            if segment is None:
                return
            frames = self.frames() if self.context == "all" else segment["frames"]
            self.entry(device, "free_requested", address, segment["requested"], frames)
            self.entry(device, "free_completed", address, segment["requested"], frames)
            segment["state"] = "inactive"
            self.stats[device]["freed"] += segment["requested"]

    # what it tells

    def attach(self, observer):
        if not self.initialised and self.crashes_early:
            os.abort()
        self.initialise()
        self.observers.append(observer)

    def segment(self, device, address, s):
        active = s["size"] if s["state"] == "active_allocated" else 0
        requested = s["requested"] if active else 0
        out = {
            "device": device, "address": address, "total_size": s["total"], "allocated_size": active, "active_size": active,
            "stream": 0, "segment_type": "large",
        }
        block = {"size": s["size"], "requested_size": requested, "state": s["state"]}
        blocks = [block]
        if self.release >= (2, 1):
            out.update({"requested_size": requested, "segment_pool_id": (0, 0), "is_expandable": False})
            block.update({"address": address, "frames": s["frames"] or []})
            out["frames"] = s["frames"] or []
        elif s["frames"] is not None:
            block["history"] = [{"addr": address, "real_size": s["requested"], "frames": s["frames"]}]
        if s["total"] > s["size"]:
            rest = {"size": s["total"] - s["size"], "requested_size": 0, "state": "inactive"}
            if self.release >= (2, 1):
                rest.update({"address": address + s["size"], "frames": []})
            blocks.append(rest)
        out["blocks"] = blocks
        return out

    def snapshot(self, traces=True):
        with self.mutex:
            tree = {
                "segments": [self.segment(d, a, s) for d in range(self.devices) for a, s in sorted(self.segments[d].items())],
                "device_traces": [list(t) if traces else [] for t in self.traces],
            }
            if self.kind == "cuda" and self.release >= (2, 3):
                tree["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}
            if self.kind == "cuda" and self.release >= (2, 5):
                tree["external_annotations"] = []
            return tree

    def figures(self, device):
        stats = self.stats[device]
        current = stats["allocated"] - stats["freed"]
        return {
            "allocated_bytes.all.current": current, "allocated_bytes.all.allocated": stats["allocated"],
            "num_alloc_retries": stats["retries"], "num_ooms": stats["ooms"], "reserved_bytes.all.current": self.used(device),
        }

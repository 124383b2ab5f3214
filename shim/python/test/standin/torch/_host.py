# SPDX-License-Identifier: Apache-2.0
"""A model of the caching allocator of pinned host memory: a segment of one block for each request, of the next power of two of
bytes, kept when the block is freed. What was asked for is noted nowhere."""

import itertools
import threading
import time


class HostAllocator:
    def __init__(self, stack):
        self.stack = stack
        self.mutex = threading.Lock()
        self.recording = False
        self.context = None
        self.max_entries = 1
        self.blocks = {}
        self.trace = []
        self.addresses = itertools.count(0x7E0000000000, 1 << 36)
        self.counts = {name: dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
                       for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes")}

    def record(self, enabled, context, max_entries):
        with self.mutex:
            self.recording = enabled
            self.context = context if enabled else None
            self.max_entries = max(1, max_entries)

    def frames(self, levels):
        return self.stack() if self.context in levels else None

    def entry(self, action, address, size, frames=None):
        if not self.recording:
            return
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time.time_ns() // 1000,
                 "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0)}
        if frames is not None:
            entry["frames"] = frames
        self.trace.append(entry)
        del self.trace[: -self.max_entries]

    def count(self, name, by):
        c = self.counts[name]
        c["allocated" if by > 0 else "freed"] += abs(by)
        c["current"] += by
        c["peak"] = max(c["peak"], c["current"])

    def malloc(self, size):
        frames = self.frames(("state", "alloc", "all"))
        with self.mutex:
            rounded = 1 << (size - 1).bit_length()
            address = next((a for a, b in self.blocks.items() if not b["allocated"] and b["size"] == rounded), None)
            if address is None:
                address = next(self.addresses)
                self.blocks[address] = {"size": rounded}
                self.entry("segment_alloc", address, rounded)
                self.count("allocations", 1)
                self.count("allocated_bytes", rounded)
            self.blocks[address].update(allocated=True, frames=frames)
            self.count("active_requests", 1)
            self.count("active_bytes", rounded)
            self.entry("alloc", address, rounded, frames)
            return address

    def free(self, address):
        frames = self.frames(("all",))
        with self.mutex:
            block = self.blocks[address]
            block.update(allocated=False, frames=None)
            self.entry("free_requested", address, block["size"], frames)
            self.entry("free_completed", address, block["size"])
            self.count("active_requests", -1)
            self.count("active_bytes", -block["size"])

    # what it tells

    def segments(self):
        out = []
        for address, b in self.blocks.items():
            used = b["size"] if b["allocated"] else 0
            out.append({
                "device": -1, "address": address, "total_size": b["size"], "allocated_size": used, "active_size": used,
                "requested_size": 0, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                "blocks": [{
                    "address": address, "size": b["size"], "requested_size": b["size"],
                    "state": "active_allocated" if used else "inactive", "frames": b["frames"] or [],
                }],
            })
        return out

    def tree(self):
        """Of the snapshot, what is its own; empty where nothing is recorded."""
        with self.mutex:
            if not self.recording:
                return {"host_segments": [], "host_traces": []}
            return {"host_segments": self.segments(), "host_traces": list(self.trace)}

    def figures(self):
        with self.mutex:
            out = {name + "." + key: n for name, c in self.counts.items() for key, n in c.items()}
            out["num_host_alloc"] = self.counts["allocations"]["allocated"]
            out["num_host_free"] = self.counts["allocations"]["freed"]
            return out

# SPDX-License-Identifier: Apache-2.0
"""The observer that the allocator calls when it has to refuse a request: after its cache was given back, with nothing unwound,
on the allocating thread, without a lock of its own (pytorch/pytorch#86241).

A program may run out of memory a thousand times, as when it looks for the largest batch. The first time has a snapshot; then at
most one a gap, and none within ten times what the last one took. Of the others the figures of the last are kept: its snapshot
is taken later, at a step or at the end, and shows the moment all the same, since the history has it.
"""

import _thread
import time

from heapwire import _guard, _snapshot

_COST_SHARE = 10


class Observer:
    def __init__(self, device, gap, history, step):
        self.device = device
        self.gap = gap
        self.history = history  # a function: what is known of the recording
        self.step = step  # a function: the last step that was over
        self.reset()

    def reset(self):
        """In the child of a fork, too."""
        self._lock = _thread.allocate_lock()  # nobody waits for it
        self.count = 0
        self.taken = 0
        self._skipped = 0
        self._not_before = None
        self._late = None  # of the last one without a snapshot
        self.on_late = None  # called when there is one

    @_guard.entry("observing out of memory")
    def __call__(self, index, requested=0, limit=0, free=0, *_):
        if not self._lock.acquire(False):
            self.count += 1  # another thread is at it
            self._skipped += 1
            return
        try:
            self.count += 1
            figures = self._figures(index, requested, limit, free)
            if self._not_before is not None and time.monotonic() < self._not_before:
                self._skipped += 1
                self._late = figures
                if self.on_late is not None:
                    _guard.attempt("planning a late snapshot", None, self.on_late)
                return
            self._late = None
            self._take(figures)
        finally:
            self._lock.release()

    def _figures(self, index, requested, limit, free):
        figures = _snapshot.moment(self.device, "oom", index)
        figures["oom_count"] = self.count
        step = self.step()
        if step is not None:
            figures["step"] = step
        if requested > 0:  # torch_npu passes zeros for a failure outside the allocator
            figures["requested_bytes"] = requested
            figures["free_bytes"] = free
            # The process's own limit if it has one, otherwise the device's memory.
            total = _guard.attempt("asking for the device's memory", None, self.device.total, index)
            figures["total_bytes"] = total or limit
            if total and limit < total:
                figures["limit_bytes"] = limit
        _snapshot.stats(self.device, figures, [index])
        return figures

    def _take(self, figures):
        if self._skipped:
            figures["skipped"] = self._skipped
        began = time.monotonic()
        try:
            history = _guard.attempt("asking for the history", None, self.history)
            if history and history.get("by") == "torch_npu":
                # Its ring has no bound, and it writes a file of its own at this moment.
                figures["history"] = history
                figures["error"] = "torch_npu takes the snapshot itself: OOM_SNAPSHOT_ENABLE is set"
                if _snapshot.note(self.device, "oom", figures):
                    self.taken += 1
            elif _snapshot.take(self.device, "oom", figures, history):
                self.taken += 1
            self._skipped = 0
        finally:
            ended = time.monotonic()
            self._not_before = ended + max(self.gap, (ended - began) * _COST_SHARE)

    def late(self, now=False):
        """Takes the snapshot that is due for the last refusal without one: if the time has come, or `now`."""
        if self._late is None or not (now or time.monotonic() >= self._not_before) or not self._lock.acquire(False):
            return
        try:
            figures, self._late = self._late, None
            if figures is not None:
                figures["after_unwinding"] = True
                self._skipped -= 1  # it has one now
                self._take(figures)
        finally:
            self._lock.release()

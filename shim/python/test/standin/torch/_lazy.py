# SPDX-License-Identifier: Apache-2.0
"""What waits for a device's initialisation; of torch.cuda and torch_npu.npu alike."""

import os
import threading
import traceback

import torch


class Lazy:
    def __init__(self, kind, failure):
        self.kind = kind
        self.failure = failure
        self.queued = []
        self.lock = threading.RLock()
        self.local = threading.local()
        self.initialised_in = None  # a pid

    def is_initialized(self):
        return self.initialised_in == os.getpid()

    def call(self, f):
        with self.lock:
            if self.is_initialized():
                f()
            else:
                self.queued.append((f, traceback.format_stack()))

    def init(self):
        if self.is_initialized() or getattr(self.local, "busy", False):
            return
        with self.lock:
            if self.is_initialized():
                return
            if self.initialised_in is not None:
                raise RuntimeError("Cannot re-initialize %s in forked subprocess" % self.kind.upper())
            torch.counts["initialised"].append(self.kind)
            self.allocator.initialised = True
            self.local.busy = True
            try:
                for f, _ in self.queued:
                    try:
                        f()
                    except Exception as e:
                        raise self.failure("call failed lazily at initialization: %s" % e) from e
            finally:
                self.local.busy = False
            self.initialised_in = os.getpid()

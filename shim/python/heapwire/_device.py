# SPDX-License-Identifier: Apache-2.0
"""The two device kinds and their caching allocators: the same functions under other names, and signatures that differ by
version.

Nothing here initialises a device, waits for one or allocates on one.
"""

import inspect
import sys


class Device:
    """One kind of device: `package` is torch or torch_npu, `module` torch.cuda or torch_npu.npu."""

    def __init__(self, kind, package, module):
        self.kind = kind
        self.module = module
        self.memory = sys.modules.get(module.__name__ + ".memory") or getattr(module, "memory")
        self._c = package._C

    def call_when_initialised(self, arm):
        """At the device's initialisation in this process or a forked child, at once if that was before."""
        self.module._lazy_call(arm)

    def initialised(self):
        return bool(self.module.is_initialized())

    def attach(self, observer):
        getattr(self._c, "_%s_attach_out_of_memory_observer" % self.kind)(observer)

    def recording(self):
        """Whether memory history is on; None where this version does not tell."""
        f = getattr(self._c, "_%s_isHistoryEnabled" % self.kind, None)
        return None if f is None else bool(f())

    def record(self, entries, pinned):
        """Turns memory history on, that of pinned host memory too where the build has it and `pinned` is set. Stacks of frees
        are not recorded: a free is told by its address.

        Once, and never again: who turns it on later, with other settings, cannot be told from us, and is to have what they
        asked for.
        """
        record = self.memory._record_memory_history
        accepted = inspect.signature(record).parameters
        if "max_entries" in accepted:
            wanted = {"context": "alloc", "stacks": "python", "max_entries": entries}
            if pinned:
                wanted["record_pinned_host_memory"] = True  # PyTorch 2.14, pytorch/pytorch#182407
            record("all", **{k: v for k, v in wanted.items() if k in accepted})
        else:  # torch 2.0
            wanted = {
                "record_context": True,
                "record_context_cpp": False,
                "trace_alloc_max_entries": entries,
                "trace_alloc_record_context": True,
            }
            record(True, **{k: v for k, v in wanted.items() if k in accepted})

    def snapshot(self):
        return self.memory._snapshot()

    def has_segments(self):
        """Whether the build gives the segments without the history, in a fraction of the time (pytorch/pytorch#173949)."""
        f = getattr(self.memory, "memory_snapshot", None)
        return f is not None and "include_traces" in inspect.signature(f).parameters

    def segments(self):
        return self.memory.memory_snapshot(include_traces=False)

    @staticmethod
    def _numbers(stats):
        return {k: v for k, v in stats.items() if isinstance(v, (int, float))}

    def stats(self, index):
        return self._numbers(self.memory.memory_stats(index))

    def host_stats(self):
        """Of pinned host memory, where the build tells (pytorch/pytorch#147660, of 2025)."""
        f = getattr(self.memory, "host_memory_stats", None)
        return {} if f is None else self._numbers(f())

    def total(self, index):
        return int(self.module.get_device_properties(index).total_memory)

    def current(self):
        return int(self.module.current_device())

    def name(self, index):
        return "%s:%d" % (self.kind, index)


def of(name):
    """The device kind of a package that has been imported, or None."""
    package = sys.modules.get(name)
    if package is None:
        return None
    if name == "torch":
        return Device("cuda", package, package.cuda)
    return Device("npu", package, package.npu)

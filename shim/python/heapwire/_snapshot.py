# SPDX-License-Identifier: Apache-2.0
"""One snapshot of one kind of device: the allocator's own tree, and what is known beside it."""

import gc
import os
import sys
import time

from heapwire import _files, _guard, _pinned, _settings, _stack

_SETTINGS_VARIABLES = {
    "cuda": ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    "npu": ("PYTORCH_NPU_ALLOC_CONF",),
}

# What the program waits for: where a request has been refused, nobody looks through all its objects.
_CALM = ("api", "window")


def moment(device, reason, index=None):
    """What has to be noted when it happens."""
    figures = {"schema": 1, "reason": reason, "device_kind": device.kind, "time_unix_nano": time.time_ns()}
    if index is None:
        index = _guard.attempt("asking for the current device", None, device.current)
    if index is not None:
        figures["device"] = device.name(index)
    rank = _guard.attempt("asking for the rank", None, _settings.rank, sys.modules.get("torch"))
    if rank is not None:
        figures["rank"] = rank
    if reason in ("oom", "api"):
        _some(figures, "thread", _guard.attempt("asking for the thread's name", None, _stack.thread))
        _some(figures, "python_stack", _guard.attempt("reading the stack", None, _stack.here))
    return figures


def _some(figures, key, value):
    if value:
        figures[key] = value


def stats(device, figures, indexes):
    """The allocator's figures of each device, beside those that are there already."""
    have = figures.setdefault("memory_stats", {})
    for i in indexes:
        if device.name(i) not in have:
            s = _guard.attempt("reading the allocator's figures", None, device.stats, i)
            if s:
                have[device.name(i)] = s
    if not have:
        del figures["memory_stats"]


def _surroundings(device, figures):
    for name in _SETTINGS_VARIABLES[device.kind]:
        _some(figures, "allocator_settings", os.environ.get(name))
    for package in ("torch", "torch_npu"):
        version = getattr(sys.modules.get(package), "__version__", None)
        if version is not None:
            figures[package + "_version"] = str(version)


def _describe(device, history, figures, tree):
    """What the tree itself says: which devices it has, how full their rings are."""
    traces = tree.get("device_traces", ()) if isinstance(tree, dict) else ()
    segments = tree.get("segments", ()) if isinstance(tree, dict) else tree
    entries = {device.name(i): len(t) for i, t in enumerate(traces) if t}
    if history is not None:
        history = dict(history)
        if entries:
            history["entries"] = entries
        most = history.get("max_entries")
        if most and any(n > most for n in entries.values()):
            # Turned on again by the program, with a larger ring.
            history = {"enabled": True, "by": "program", "entries": entries}
        elif most:
            history["overflowed"] = any(n == most for n in entries.values())
        figures["history"] = history
    stats(device, figures, sorted({s["device"] for s in segments}))
    host = _guard.attempt("reading the figures of pinned memory", None, device.host_stats)
    if host:
        figures.setdefault("memory_stats", {})["cpu"] = host


def take(device, name, figures, history=None, segments_only=False):
    """Takes the snapshot and writes it. Returns whether its pickle lies in the spool.

    The collector is off meanwhile: it would run for the many objects of the tree, and free tensors while the state they were
    in is being written.
    """
    collecting = gc.isenabled()
    if collecting:
        gc.disable()
    try:
        tree = None
        try:
            tree = device.segments() if segments_only else device.snapshot()
        except BaseException as e:
            _guard.swallow("taking a snapshot", e)
            figures["error"] = "taking the snapshot: %s: %.200s" % (type(e).__name__, e)
        if tree is not None:
            if figures["reason"] in _CALM:
                pinned = _guard.attempt("asking tensors for their size", None, _pinned.amend, tree)
                if pinned is not None:
                    figures["pinned"] = pinned
            _guard.attempt("describing a snapshot", None, _describe, device, history, figures, tree)
        _guard.attempt("describing the program", None, _surroundings, device, figures)
        return _files.put(name, device.kind, figures, tree)
    finally:
        if collecting:
            gc.enable()


def note(device, name, figures):
    """The figures alone, where another writes the snapshot. Returns whether they lie in the spool."""
    _guard.attempt("describing the program", None, _surroundings, device, figures)
    _files.put(name, device.kind, figures, None)
    return True

# SPDX-License-Identifier: Apache-2.0
"""What is watched in this process, and by whom.

torch is imported: steps are counted, and the rest waits in torch's own queue of things to do at a device's initialisation.
The device is initialised: the observer is attached, memory history goes on. Nothing here initialises a device.
"""

import os
import sys
import time

from heapwire import _device, _guard, _settings, _shim, _snapshot, _steps
from heapwire._oom import Observer


class _Kind:
    """A kind of device in this process."""

    def __init__(self, device, settings):
        self.device = device
        self.settings = settings
        self.observer = Observer(device, settings.oom_gap, self.history, lambda: _steps_counted.last)
        self.reset()

    def reset(self):
        self.armed = False
        self.attached = False
        self.ours = False  # the recording
        self.snapshots = 0
        self.observer.reset()
        self.observer.on_late = _at_exit

    @_guard.entry("arming")
    def arm(self):
        """Called by torch with its initialisation lock held; what this raises, the program's first use of a device raises."""
        if self.armed:
            return
        self.armed = True
        _guard.attempt("attaching the observer", None, self._attach)
        _guard.attempt("turning memory history on", None, self._record)

    def _attach(self):
        self.device.attach(self.observer)  # raises under cudaMallocAsync and pluggable allocators
        self.attached = True

    def _record(self):
        if not self.settings.history or _others_dumper(self.device.kind) or self.device.recording():
            return
        # Whether the program records pinned memory already cannot be asked for. Before the device is there it does not.
        self.device.record(self.settings.history, pinned=not self.device.initialised())
        self.ours = True

    def history(self):
        enabled = self.device.recording()
        if enabled is None:
            enabled = self.ours
        if not enabled:
            return {"enabled": False}
        if self.ours:
            return {"enabled": True, "by": "heapwire", "max_entries": self.settings.history, "stacks": "python"}
        return {"enabled": True, "by": "torch_npu" if _others_dumper(self.device.kind) else "program"}

    def take(self, reason, file_name, segments_only=False, **more):
        if not self.device.initialised():
            return False
        figures = _snapshot.moment(self.device, reason)
        if _steps_counted.last is not None:
            figures["step"] = _steps_counted.last
        figures.update(more)
        history = None if segments_only else _guard.attempt("asking for the history", None, self.history)
        if not _snapshot.take(self.device, file_name, figures, history, segments_only):
            return False
        self.snapshots += 1
        return True

    def take_window(self, first, last):
        name = "steps%d-%d" % (first, last)
        self.take("window", name, window=name)

    def take_segments(self):
        history = self.history()
        if not history["enabled"]:
            self.take("segments", "segments")
        elif self.device.has_segments():
            self.take("segments", "segments", segments_only=True)


def _others_dumper(kind):
    """torch_npu's own: it records without a bound and writes its own file when memory runs out."""
    return kind == "npu" and os.environ.get("OOM_SNAPSHOT_ENABLE", "0") not in ("", "0")


_steps_counted = _steps.Counter()
_config = None
_windows = None
_kinds = {}
_counting = False
_next_segments = None
_exit_planned = False
_is_compiling = None


def wanted():
    return _shim.profiled() and _settings_read().enabled


def _settings_read():
    global _config, _windows
    if _config is None:
        _config = _settings.Settings()
        _windows = _steps.Windows(_config.window_steps)
        os.register_at_fork(after_in_child=_forked)
    return _config


@_guard.entry("after the import of torch")
def loaded(package):
    """torch or torch_npu has been imported."""
    if not wanted():
        return
    if package == "torch":
        _guard.attempt("counting optimizer steps", None, _count_steps)
    _guard.attempt("waiting for a device", None, _watch, package)


def _watch(package):
    device = _device.of(package)
    if device is None or device.kind in _kinds:
        return
    kind = _kinds[device.kind] = _Kind(device, _config)
    device.call_when_initialised(kind.arm)


def _count_steps():
    global _counting, _is_compiling
    if _counting:
        return
    torch = sys.modules["torch"]
    from torch.optim.optimizer import register_optimizer_step_post_hook

    _is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if _is_compiling is None:
        _is_compiling = bool
        _optimizer_stepped._torchdynamo_disable = True
    register_optimizer_step_post_hook(_optimizer_stepped)
    _counting = True


def _optimizer_stepped(optimizer, args, kwargs):
    if not _is_compiling():  # nothing of us is to be compiled into a step
        _count(optimizer)


@_guard.entry("counting a step")
def _count(optimizer):
    if _steps_counted.optimizer_stepped(optimizer):
        _step_is_over()


@_guard.entry("counting a step")
def step(n=None):
    if wanted():
        _steps_counted.stepped(n)
        _step_is_over()


def _step_is_over():
    n = _steps_counted.last
    _shim.step(n)
    window = _windows.over(n)
    if not _kinds:
        return
    for kind in list(_kinds.values()):
        if kind.armed:
            _guard.attempt("a late snapshot", None, kind.observer.late)
    segments = _segments_due()
    if not (window or segments) or not _config.selected(_rank()):
        return
    for kind in list(_kinds.values()):
        if not kind.armed:
            continue
        if window:
            _guard.attempt("the snapshot of a window", None, kind.take_window, *window)
        if segments:
            _guard.attempt("a snapshot of the segments", None, kind.take_segments)


def _rank():
    return _guard.attempt("asking for the rank", None, _settings.rank, sys.modules.get("torch"))


def _segments_due():
    global _next_segments
    if not _config.segments:
        return False
    now = time.monotonic()
    due = _next_segments is not None and now >= _next_segments
    if due or _next_segments is None:
        _next_segments = now + _config.segments
    return due


@_guard.entry("a snapshot that the program asked for", False)
def snapshot(name):
    if not wanted():
        return False
    for package in ("torch", "torch_npu"):
        if package in sys.modules:
            _guard.attempt("looking for a device", None, _watch, package)
    taken = [
        _guard.attempt("a snapshot that the program asked for", False, kind.take, "api", name, name=name)
        for kind in list(_kinds.values())
    ]
    return any(taken)


def _at_exit():
    """For a refusal whose snapshot is still to come: at the latest when the program ends. multiprocessing's children do not run
    atexit's functions, but their own."""
    global _exit_planned
    if _exit_planned:
        return
    _exit_planned = True
    import atexit

    atexit.register(_last_call, os.getpid())
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _last_call, args=(os.getpid(),), exitpriority=100)


@_guard.entry("a late snapshot")
def _last_call(pid):
    if pid != os.getpid():
        return
    for kind in list(_kinds.values()):
        _guard.attempt("a late snapshot", None, kind.observer.late, True)


@_guard.entry("after a fork")
def _forked():
    """In the child nothing has happened yet. Where the parent had initialised a device, the child cannot use it."""
    global _next_segments, _exit_planned
    _steps_counted.reset()
    _windows.reset()
    _next_segments = None
    _exit_planned = False
    for kind in _kinds.values():
        kind.reset()


@_guard.entry("telling the status", {})
def status():
    kinds = {}
    for name, kind in list(_kinds.items()):
        kinds[name] = {
            "armed": kind.armed,
            "observer": kind.attached,
            "history": _guard.attempt("asking for the history", None, kind.history) if kind.armed else None,
            "ooms": kind.observer.count,
            "snapshots": kind.snapshots + kind.observer.taken,
        }
    return {
        "profiled": _shim.profiled(),
        "step": _steps_counted.last,
        "devices": kinds,
        "errors": list(_guard.errors),
    }

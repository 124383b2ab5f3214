# SPDX-License-Identifier: Apache-2.0
"""Nothing is raised into the program, whatever fails within us, and whatever it fails with."""

import functools
import importlib
import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

from room import PACKAGE, forget, room, run_out, stub

ERRORS = [ValueError, MemoryError, RecursionError, OSError, SystemExit, GeneratorExit, BaseException]


def errors(i):
    """Two of them, not always the same."""
    return ERRORS[i % len(ERRORS)], ERRORS[(i + 4) % len(ERRORS)]


# Everything that is called on the way to a snapshot: module of ours or of torch, and name.
CALLS = [
    ("torch._C", "_cuda_attach_out_of_memory_observer"),
    ("torch._C", "_cuda_isHistoryEnabled"),
    ("torch.cuda.memory", "_record_memory_history"),
    ("torch.cuda.memory", "_snapshot"),
    ("torch.cuda.memory", "memory_snapshot"),
    ("torch.cuda.memory", "memory_stats"),
    ("torch.cuda.memory", "host_memory_stats"),
    ("torch.cuda", "get_device_properties"),
    ("torch.cuda", "current_device"),
    ("torch.cuda", "is_initialized"),
    ("torch.cuda", "_lazy_call"),
    ("torch.optim.optimizer", "register_optimizer_step_post_hook"),
    ("torch.distributed", "is_available"),
    ("heapwire._shim", "place"),
    ("heapwire._shim", "step"),
    ("heapwire._shim", "profiled"),
    ("heapwire._stack", "here"),
    ("heapwire._stack", "thread"),
    ("heapwire._settings", "Settings"),
    ("heapwire._settings", "rank"),
    ("heapwire._steps", "Windows"),
    ("heapwire._device", "of"),
    ("heapwire._snapshot", "moment"),
    ("heapwire._snapshot", "stats"),
    ("heapwire._snapshot", "take"),
    ("heapwire._snapshot", "_describe"),
    ("heapwire._snapshot", "_surroundings"),
    ("heapwire._pinned", "amend"),
    ("heapwire._pinned", "_asked"),
    ("heapwire._files", "put"),
    ("heapwire._files", "what"),
    ("heapwire._files", "_create"),
    ("heapwire._files", "_write_json"),
    ("heapwire._files", "_remove"),
    ("heapwire._guard", "attempt"),
    ("heapwire._guard", "swallow"),
    ("heapwire._arm", "_count_steps"),
    ("heapwire._arm", "_watch"),
    ("heapwire._arm", "_segments_due"),
    ("heapwire._arm", "_step_is_over"),
]
# Of the standard library: our module, its name there, what is called.
STANDARD = [
    ("heapwire._files", "os", "open"),
    ("heapwire._files", "os", "fdopen"),
    ("heapwire._files", "os", "rename"),
    ("heapwire._files", "os", "unlink"),
    ("heapwire._files", "json", "dumps"),
    ("heapwire._files", "pickle", "dump"),
    ("heapwire._snapshot", "time", "time_ns"),
    ("heapwire._snapshot", "gc", "disable"),
    ("heapwire._snapshot", "gc", "isenabled"),
    ("heapwire._pinned", "gc", "get_objects"),
    ("heapwire._oom", "time", "monotonic"),
    ("heapwire._arm", "time", "monotonic"),
    ("heapwire._arm", "os", "register_at_fork"),
    ("heapwire._device", "inspect", "signature"),
    ("heapwire._stack", "sys", "_getframe"),
]
# What is called when torch is imported, and not later.
AT_IMPORT = {
    "_lazy_call", "register_optimizer_step_post_hook", "Settings", "Windows", "of", "_count_steps", "register_at_fork",
}


class Copy:
    """A module with one of its functions replaced, for one of its users."""

    def __init__(self, module, name, f):
        self.__dict__.update(module.__dict__)
        # It has the signature of what it stands for.
        self.__dict__[name] = functools.wraps(module.__dict__[name])(lambda *args, **kwargs: f())


def program(r):
    """What a program does; what it sees of it."""
    torch, seen = r.torch, []
    optimizer = torch.optim.SGD()
    if "heapwire._arm" in sys.modules:
        sys.modules["heapwire._arm"]._next_segments = 0  # long due
    held = torch.empty(8 << 20), torch.empty(5000, pin_memory=True)
    for _ in range(3):
        seen.append(optimizer.step())
    r.heapwire.step(7)
    seen.append(len([held]))
    for _ in range(3):
        run_out(torch)
    seen.append(bool(torch.cuda.is_initialized.__module__))
    r.heapwire.snapshot("x")
    return seen


class Faults(unittest.TestCase):
    settings = dict(HEAPWIRE_TORCH_WINDOW_STEPS="2", HEAPWIRE_TORCH_SEGMENTS="1ms")

    def check(self, error, prepare):
        out, err = io.StringIO(), io.StringIO()
        # The stand-in is imported first, the package with it: faults that hit the import come with armed=False.
        with redirect_stdout(out), redirect_stderr(err), room(**self.settings) as r:
            calls = [0]

            def fail(*args, **kwargs):
                calls[0] += 1
                raise error("injected")

            prepare(r, fail)
            try:
                self.assertEqual(program(r), [0.5, 0.25, 0.125, 1, True])
            except BaseException as e:
                self.fail("raised into the program: %r" % e)
            self.assertFalse([n for n in r.names() if n.endswith(".tmp") and "_remove" not in str(prepare)])
        self.assertEqual((out.getvalue(), err.getvalue()), ("", ""))
        return calls[0]

    def test_each_call(self):
        for i, (module, name) in enumerate(CALLS):
            for error in errors(i):
                with self.subTest(module=module, name=name, error=error.__name__):

                    def prepare(r, fail):
                        # Torch's own calls of them do not fail: only ours, which go through our view of the module.
                        if module.startswith("torch"):
                            self.in_torch(r, module, name, fail)
                        else:
                            setattr(sys.modules[module], name, fail)
                        if name == "swallow":
                            sys.modules["heapwire._files"].put = fail

                    called = self.check(error, prepare)
                    self.assertTrue(called or name in AT_IMPORT, "was not called")

    def in_torch(self, r, module, name, fail):
        from heapwire import _arm

        for kind in _arm._kinds.values():
            device = kind.device
            if module == "torch._C":
                device._c = Copy(device._c, name, fail)
            elif module == "torch.cuda.memory":
                device.memory = Copy(device.memory, name, fail)
            elif module == "torch.cuda":
                device.module = Copy(device.module, name, fail)
            elif module == "torch.distributed":
                sys.modules["torch"].distributed = Copy(sys.modules["torch"].distributed, name, fail)

    def test_each_call_of_the_standard_library(self):
        for i, (module, holder, name) in enumerate(STANDARD):
            for error in errors(i):
                with self.subTest(module=module, call=holder + "." + name, error=error.__name__):

                    def prepare(r, fail):
                        ours = sys.modules[module]
                        setattr(ours, holder, Copy(getattr(ours, holder), name, fail))

                    called = self.check(error, prepare)
                    self.assertTrue(called or name in AT_IMPORT, "was not called")

    def test_planning_the_end(self):
        def prepare(r, fail):
            for kind in sys.modules["heapwire._arm"]._kinds.values():
                kind.observer.on_late = fail

        self.assertGreater(self.check(SystemExit, prepare), 0)

    def test_while_torch_is_imported(self):
        for i, (module, name) in enumerate(CALLS):
            if not module.startswith("heapwire"):
                continue
            for error in errors(i):
                with self.subTest(module=module, name=name, error=error.__name__):

                    def fail(*args, **kwargs):
                        raise error("injected")

                    def before_torch():
                        importlib.import_module("heapwire._arm")
                        setattr(sys.modules[module], name, fail)

                    with room(before_torch=before_torch, **self.settings) as r:
                        self.assertEqual(program(r), [0.5, 0.25, 0.125, 1, True])

    def test_a_package_that_cannot_be_imported(self):
        for broken in (None, "raise SystemExit(1)\n"):
            with self.subTest(broken=broken), room() as r, tempfile.TemporaryDirectory() as folder:
                if broken:
                    os.mkdir(os.path.join(folder, "heapwire"))
                    with open(os.path.join(folder, "heapwire", "__init__.py"), "w") as f:
                        f.write(broken)
                forget()
                sys.meta_path[:] = [stub(folder)] + [f for f in sys.meta_path if not hasattr(f, "heapwire")]
                sys.path.remove(PACKAGE)
                path = list(sys.path)
                import torch

                run_out(torch)
                self.assertEqual(sys.path, path)
                self.assertEqual([f for f in sys.meta_path if hasattr(f, "heapwire")], [])
                self.assertEqual((r.names(), torch.counts["observers"]), ([], 0))

    def test_a_full_disk_leaves_the_json_that_says_so(self):
        with room() as r:
            r.torch.empty(1)
            from heapwire import _files

            def full(*args, **kwargs):
                raise OSError(28, "No space left on device")

            _files.pickle = Copy(_files.pickle, "dump", full)
            run_out(r.torch)
            self.assertEqual(r.names(), ["000001.oom.cuda.json"])
            self.assertIn("No space left", r.only()["error"])
            self.assertIn("No space left", " ".join(r.heapwire.status()["errors"]))

    def test_a_snapshot_that_fails_leaves_the_json_that_says_so(self):
        with room() as r:
            r.torch.empty(1)

            def broken():
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

            r.torch.cuda.memory._snapshot = broken
            run_out(r.torch)
            self.assertIn("illegal memory access", r.only()["error"])
            self.assertEqual(r.only()["memory_stats"]["cuda:0"]["num_ooms"], 1)

    def test_a_request_to_stop_comes_a_moment_later(self):
        import signal
        import time

        with room() as r:
            r.torch.empty(1)
            snapshot = r.torch.cuda.memory._snapshot

            # A function of its own: 3.13.0 has backward jumps that no `with` or `try` around them covers.
            def wait():
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    pass

            def interrupted():
                os.kill(os.getpid(), signal.SIGINT)
                wait()
                return snapshot()

            r.torch.cuda.memory._snapshot = interrupted
            refused = False
            with self.assertRaises(KeyboardInterrupt):
                try:
                    r.torch.empty(2 << 30)
                except r.torch.OutOfMemoryError:
                    refused = True
                wait()
            self.assertTrue(refused)

    def test_the_errors_kept_are_few(self):
        with room() as r:
            for _ in range(100):
                r.heapwire.step("x")
            self.assertEqual(len(r.heapwire.status()["errors"]), 16)


if __name__ == "__main__":
    unittest.main()

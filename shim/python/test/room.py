# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the package and a stand-in torch, imported anew, with a folder in place of the library's."""

import contextlib
import glob
import json
import os
import pickle
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
STANDIN = os.path.join(HERE, "standin")
INJECT = os.path.join(PACKAGE, "inject", "sitecustomize.py")
OURS = ("torch", "torch_npu", "heapwire")


def stub(folder):
    """What our sitecustomize leaves in sys.meta_path, without running what runs at a program's start."""
    with open(INJECT) as f:
        text = f.read()
    names = {"__file__": INJECT, "__name__": "sitecustomize"}
    exec(compile(text[: text.index("_folder = ")], INJECT, "exec"), names)
    return names["_Stub"](folder)


class Room:
    """A process's folder, and what has been put there."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="heapwire-python-")
        self.number = 0
        self.steps = []
        self.profiled = True

    def place(self):
        self.number += 1
        return os.path.join(self.folder, "%06d" % self.number)

    def names(self):
        return sorted(os.listdir(self.folder))

    def snapshots(self):
        """name without the ending -> its JSON, in order."""
        found = {}
        for path in sorted(glob.glob(os.path.join(self.folder, "*.json"))):
            with open(path) as f:
                found[os.path.basename(path)[: -len(".json")]] = json.load(f)
        return found

    def only(self):
        (found,) = self.snapshots().values()
        return found

    def tree(self, name):
        with open(os.path.join(self.folder, name + ".pickle"), "rb") as f:
            return pickle.load(f)


def forget():
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS:
            del sys.modules[name]


@contextlib.contextmanager
def room(package="torch", profiled=True, before_torch=lambda: None, **environment):
    """The package armed as a program has it. Keyword arguments are environment variables; yields the room, with the module in
    `torch`."""
    saved = dict(os.environ), list(sys.path), list(sys.meta_path)
    for name in list(os.environ):
        if name.startswith(("HEAPWIRE", "STANDIN", "OOM_SNAPSHOT", "PYTORCH")) or name in ("RANK", "SLURM_PROCID", "PMI_RANK"):
            del os.environ[name]
    os.environ.update(environment)
    forget()
    sys.path[:0] = [STANDIN, PACKAGE]
    sys.meta_path.insert(0, stub(PACKAGE))
    r = Room()
    r.profiled = profiled
    try:
        from heapwire import _shim

        _shim.place = r.place
        _shim.profiled = lambda: r.profiled
        _shim.step = r.steps.append
        before_torch()
        import torch

        r.torch = torch
        if package == "torch_npu":
            import torch_npu

            r.torch_npu = torch_npu
        import heapwire

        r.heapwire = heapwire
        yield r
    finally:
        os.environ.clear()
        os.environ.update(saved[0])
        sys.path[:], sys.meta_path[:] = saved[1], saved[2]
        forget()
        shutil.rmtree(r.folder)


def run_out(torch, device="cuda:0", size=2 << 30):
    """Asks for more than there is, in a function of this name, and is refused as without us."""
    try:
        torch.empty(size, device)
    except torch.OutOfMemoryError:
        return
    raise AssertionError("the request was not refused")

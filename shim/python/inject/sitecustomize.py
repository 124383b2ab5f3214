# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python program that has this folder on PYTHONPATH: watches for torch, then makes way for the
sitecustomize that would have run otherwise.

Imports nothing, prints nothing. Where the library is not preloaded it only makes way.
"""

import sys


class _Finder:
    """Watches for the import of torch and torch_npu; the import itself is everybody else's."""

    heapwire = True

    def __init__(self, folder):
        self.folder = folder
        self.waiting = {"torch", "torch_npu"}
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.waiting:
            return None
        import _thread

        # Another hook may look the module up anew, and come here again.
        key = (_thread.get_ident(), name)
        if key in self.busy:
            return None
        self.busy.add(key)
        try:
            spec = self._others(name, path, target)
        finally:
            self.busy.discard(key)
        if spec is not None:
            try:
                self._watch(spec.loader, name)
            except Exception:
                pass
        return spec

    def _others(self, name, path, target):
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            if find is None:
                return None  # of before PEP 451, up to 3.11: importlib knows how to ask it
            spec = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _watch(self, loader, name):
        """Has the loader call us when it has loaded the module.

        The loader stays what it is, since programs look at it: one of its methods is covered until the module is there. A zip's
        loader (up to 3.9 without exec_module) is shared by all its modules, and has the others to load meanwhile.
        """
        method = "exec_module" if hasattr(loader, "exec_module") else "load_module"
        if method in getattr(loader, "__dict__", {}):
            return
        load = getattr(loader, method)

        def covered(module):
            mine = name == (module if isinstance(module, str) else module.__name__)
            if mine:
                loader.__dict__.pop(method, None)
            result = load(module)
            if mine:
                self.loaded(name)
            return result

        setattr(loader, method, covered)

    def loaded(self, name):
        try:
            from_here = "heapwire" not in sys.modules
            if from_here:
                sys.path.insert(0, self.folder)
            try:
                from heapwire import _arm
            finally:
                if from_here:
                    sys.path.remove(self.folder)
            _arm.loaded(name)
            self.waiting.discard(name)
            if not self.waiting or not _arm.wanted():
                self.waiting.clear()
                sys.meta_path.remove(self)
        except BaseException:
            pass


def _begin(folder):
    import os

    # A sitecustomize that looks for the next one itself may come here again.
    if any(getattr(f, "heapwire", False) for f in sys.meta_path):
        return
    if not os.environ.get("LD_PRELOAD") or os.environ.get("HEAPWIRE_TORCH", "").lower() in ("off", "0", "no", "false"):
        return
    finder = _Finder(folder)
    for name in list(finder.waiting):
        if name in sys.modules:  # a .pth file has imported it
            finder.loaded(name)
    if finder.waiting:
        sys.meta_path.insert(0, finder)


def _make_way(folder):
    """What Python would have done without this folder. Exceptions are the other module's own, and site's to deal with; that
    there is none is said as the import would have said it."""
    places = [i for i, p in enumerate(sys.path) if p == folder]
    if not places:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    for i in reversed(places):
        del sys.path[i]
    this = sys.modules.pop("sitecustomize", None)  # alive until the end
    try:
        import sitecustomize  # noqa: F401
    finally:
        for i in places:
            sys.path.insert(i, folder)
        del this


_folder = __file__.rpartition("/")[0]
try:
    _begin(_folder)
except BaseException:
    pass
_make_way(_folder)

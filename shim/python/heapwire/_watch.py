# SPDX-License-Identifier: Apache-2.0
"""Watches for the import of torch and torch_npu; the import itself is everybody else's."""

import _thread
import sys


class Finder:
    heapwire = True

    def __init__(self):
        self.waiting = {"torch", "torch_npu"}
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.waiting:
            return None
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
            from heapwire import _arm

            _arm.loaded(name)
            self.waiting.discard(name)
            if not self.waiting or not _arm.wanted():
                self.waiting.clear()
                sys.meta_path.remove(self)
        except BaseException:
            pass

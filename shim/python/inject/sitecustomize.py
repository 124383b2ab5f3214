# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python program that has this folder on PYTHONPATH: watches for torch, then makes way for the
sitecustomize that would have run otherwise.

Imports nothing, prints nothing, and is short: where it cannot be cached it is compiled at every start. Where the library is
not preloaded it only makes way.
"""

import sys


class _Stub:
    """Waits for the first import of torch, and gives its place to the finder that does the rest."""

    heapwire = True

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name == "torch_npu":
            finder = self.finder()
            return finder and finder.find_spec(name, path, target)

    def finder(self):
        try:
            if "heapwire" in sys.modules:
                from heapwire import _watch
            else:
                sys.path.insert(0, self.folder)
                try:
                    from heapwire import _watch
                finally:
                    sys.path.remove(self.folder)
            finder = _watch.Finder()
            sys.meta_path[sys.meta_path.index(self)] = finder
            return finder
        except BaseException:
            if self in sys.meta_path:
                sys.meta_path.remove(self)


def _begin(folder):
    import os

    # A sitecustomize that looks for the next one itself may come here again.
    if any(getattr(f, "heapwire", False) for f in sys.meta_path):
        return
    if not os.environ.get("LD_PRELOAD") or os.environ.get("HEAPWIRE_TORCH", "").lower() in ("off", "0", "no", "false"):
        return
    stub = _Stub(folder)
    sys.meta_path.insert(0, stub)
    for name in "torch", "torch_npu":
        if name in sys.modules:  # a .pth file has imported it
            finder = next(f for f in sys.meta_path if getattr(f, "heapwire", False))
            if finder is stub:
                finder = stub.finder()
            finder.loaded(name)


def _make_way(folder):
    """What Python would have done without this folder. Exceptions are the other module's own, and site's to deal with; that
    there is none is said as the import would have said it."""
    if folder not in sys.path:
        none = ImportError("No module named 'sitecustomize'")
        none.name = "sitecustomize"
        raise none
    place = sys.path.index(folder)  # once: site has left out repeated ones
    del sys.path[place]
    this = sys.modules.pop("sitecustomize", None)  # alive until the end
    try:
        import sitecustomize  # noqa: F401
    finally:
        sys.path.insert(place, folder)
        del this


_folder = __file__.rpartition("/")[0]
try:
    if sys.version_info >= (3, 8):  # a Python 2 may be started by a job, too
        _begin(_folder)
except BaseException:
    pass
_make_way(_folder)

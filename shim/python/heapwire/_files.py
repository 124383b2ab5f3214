# SPDX-License-Identifier: Apache-2.0
"""A snapshot's two files in the spool (docs/spool.md)."""

import json
import os
import pickle
import re

from heapwire import _guard, _shim

PROTOCOL = 4  # what readers of such files know; CPython's own default is 5 from 3.14 on


def what(name):
    """A name as it may stand in a file's name."""
    safe = re.sub("[^a-z0-9_-]", "-", name.lower())[:32]
    return safe if re.match("[a-z]", safe) else "api"


def _create(path):
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb")


def _write_json(path, figures):
    with _create(path) as f:
        f.write(json.dumps(figures, indent=1).encode("ascii") + b"\n")


def put(name, kind, figures, tree):
    """Writes both files; without a tree, or where it cannot be written, the JSON alone, which then says why. Returns whether the
    pickle is there."""
    place = _shim.place()
    folder, number = os.path.split(place)
    pickle_tmp = os.path.join(folder, ".%s.pickle.tmp" % number)
    json_tmp = os.path.join(folder, ".%s.json.tmp" % number)
    base = "%s.%s.%s" % (place, what(name), kind)
    try:
        if tree is not None:
            try:
                with _create(pickle_tmp) as f:
                    pickle.dump(tree, f, protocol=PROTOCOL)
            except BaseException as e:
                _guard.swallow("writing a snapshot", e)
                _remove(pickle_tmp)
                figures["error"] = "writing the pickle: %s: %.200s" % (type(e).__name__, e)
                tree = None
        _write_json(json_tmp, figures)
        os.rename(json_tmp, base + ".json")
        if tree is None:
            return False
        try:
            os.rename(pickle_tmp, base + ".pickle")
        except BaseException:
            _remove(base + ".json")
            raise
        return True
    finally:
        _remove(pickle_tmp)
        _remove(json_tmp)


def _remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass

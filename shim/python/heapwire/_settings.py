# SPDX-License-Identifier: Apache-2.0
"""The environment variables, docs/torch.md. What is not understood is the default, and is told in status()."""

import os

from heapwire import _guard

_UNITS = (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0))


def _switch(text):
    if text.lower() in ("on", "true", "1", "yes"):
        return True
    if text.lower() in ("off", "false", "0", "no"):
        return False
    raise ValueError("want on or off")


def _count(text):
    if not text.isdigit():
        raise ValueError("want a whole number")
    return int(text)


def _seconds(text):
    """As the shim reads a duration: a whole number and ms, s, m, h."""
    for unit, seconds in _UNITS:
        number = text[: len(text) - len(unit)]
        if text.lower().endswith(unit) and number.isdigit():
            return int(number) * seconds
    raise ValueError("want a duration such as 60s")


def _ranks(text):
    """None is all of them; otherwise a set: "0", "0,8-15"."""
    if text.lower() == "all":
        return None
    ranks = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        first = _count(first)
        last = _count(last) if dash else first
        if last < first or last - first > 1 << 20:
            raise ValueError("want numbers and ranges such as 0,8-15")
        ranks.update(range(first, last + 1))
    return ranks


def _read(name, parse, default):
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except Exception as e:
        _guard.say("%s=%.60s is not understood (%s): taking the default" % (name, text, e))
        return default


class Settings:
    def __init__(self):
        self.enabled = _read("HEAPWIRE_TORCH", _switch, True)
        self.history = _read("HEAPWIRE_TORCH_HISTORY", _count, 100000)
        self.window_steps = _read("HEAPWIRE_TORCH_WINDOW_STEPS", _count, 0)
        self.ranks = _read("HEAPWIRE_TORCH_RANKS", _ranks, None)
        self.segments = _read("HEAPWIRE_TORCH_SEGMENTS", _seconds, _read("HEAPWIRE_INTERVAL", _seconds, 60.0))
        self.oom_gap = _read("HEAPWIRE_TORCH_OOM_GAP", _seconds, 60.0)

    def selected(self, rank):
        return self.ranks is None or (rank or 0) in self.ranks


_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def rank(torch=None):
    """The rank as it is known now, or None: programs set RANK after their start, or have it from torch.distributed."""
    text = os.environ.get("RANK", "")
    if text.isdigit():
        return int(text)
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in _RANK_VARIABLES[1:]:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None

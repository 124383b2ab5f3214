"""What a program leaked, counted by the program itself: the figures its profile is checked against.

Each process appends one JSON line when it holds what it is going to hold:

    {"pid": 4242, "time_unix_nano": 1764400000000000000, "last": true,
     "sites": {"uploads": {"blocks": 1024, "block_bytes": 65473}}}

A site is named by its marker comment in the source, `# LEAK: uploads`; block_bytes is what one block asks of malloc.
"last" is true in the line of the process that waited for all others. Runs on every Python from 2.7 on.
"""
import json
import os
import sys
import time

# An object of this many bytes, with its header, fills one 64 KiB size class of jemalloc, whatever the Python version.
BLOCK = 64 * 1024 - 64


def line(sites, last=True):
    """The truth of this process; sites maps a marker's name to (blocks, bytes a block)."""
    return json.dumps({
        "pid": os.getpid(),
        "time_unix_nano": int(time.time() * 1e9),
        "last": last,
        "sites": {name: {"blocks": n, "block_bytes": size} for name, (n, size) in sites.items()},
    }, sort_keys=True)


def tell(path, sites, last=True):
    """Appends the truth to the file, or prints it where path is empty."""
    text = line(sites, last) + "\n"
    if not path:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def hold(held):
    """Where held is set, keeps everything alive until standard input ends."""
    if held:
        sys.stdin.read()

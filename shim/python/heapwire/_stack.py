# SPDX-License-Identifier: Apache-2.0
"""Where the program is: the calling thread's Python stack, as text."""

import os
import sys
import _thread

_DEPTH = 256
_HERE = os.path.dirname(__file__) + os.sep


def here():
    """The frames, innermost first: "name file:line". Those of this package, innermost, are left out, and so are outer ones beyond
    256. Empty where no Python is running, as in autograd's threads."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    lines = []
    while frame is not None and len(lines) < _DEPTH:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # 3.11
        lines.append("%s %s:%d" % (name, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return lines


def thread():
    """The thread's name as the kernel has it. threading.current_thread() would make an entry for a thread that is not its own."""
    with open("/proc/self/task/%d/comm" % _thread.get_native_id(), encoding="utf-8", errors="replace") as f:
        return f.read().rstrip("\n")

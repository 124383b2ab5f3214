# SPDX-License-Identifier: Apache-2.0
"""Nothing of ours is raised into the program: what went wrong is kept here, for status()."""

import _thread
import collections
import functools

errors = collections.deque(maxlen=16)
lost = 0


def entry(what, default=None):
    """For what the program or torch calls: it returns the default where it would raise."""

    def decorate(f):
        @functools.wraps(f)
        def guarded(*args, **kwargs):
            try:
                return f(*args, **kwargs)
            except BaseException as e:
                try:
                    swallow(what, e)
                except BaseException:
                    pass
                return default

        return guarded

    return decorate


def attempt(what, default, call, *args, **kwargs):
    """The call's result, or the default if it raises anything."""
    try:
        return call(*args, **kwargs)
    except BaseException as e:
        swallow(what, e)
        return default


def swallow(what, error):
    global lost
    try:
        # A text, not the exception: its traceback would keep the program's tensors alive.
        errors.append("%s: %s: %.500s" % (what, type(error).__name__, error))
        lost += 1
        if isinstance(error, KeyboardInterrupt):
            # Somebody wants the program to stop, and happened to hit our code. It comes again when this thread is back in the
            # program's.
            _thread.start_new_thread(_thread.interrupt_main, ())
    except BaseException:
        pass


def say(text):
    errors.append(text)

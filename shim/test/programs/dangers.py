"""Dangerous things, again and again. usage: dangers.py LIBRARY NAME ROUNDS. Prints a byte a round.

LIBRARY is dangers.c, built. A round that goes wrong is said on stderr, exit status 1 then.
"""
import ctypes
import os
import random
import signal
import sys
import threading
import warnings

released, held = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
rounds = int(sys.argv[3])
warnings.simplefilter("ignore")  # of forks in a process with threads


def done():
    os.write(1, b".")


def wait_for(child, status):
    _, got = os.waitpid(child, 0)
    if got != status << 8:
        sys.exit("a child left with status %x" % got)
    done()


def keep_some():
    return [bytearray(600 + i) for i in range(100)]


def thread(function, *args):
    t = threading.Thread(target=function, args=args, daemon=True)
    t.start()
    return t


def forever(function, *args):
    while True:
        function(*args)


def joined():
    """The GIL is held while a thread that allocates is waited for."""
    for _ in range(rounds):
        assert held.joined() == 0
        done()


def lock_order():
    """A holds a lock and allocates; B holds the GIL and wants that lock."""
    for _ in range(rounds):
        assert held.lock_order() == 0
        done()


def many_stacks(functions, lines):
    """Blocks from so many different lines, so that a dump takes a while."""
    source = "def f(keep):\n" + "    keep.append(bytearray(600))\n" * lines
    keep = []
    for i in range(functions):
        space = {}
        exec(compile(source, "<%d>" % i, "exec"), space)
        space["f"](keep)
    return keep


def fork_while_dumping():
    """Forks while other threads allocate and the clock dumps most of the time."""
    keep = many_stacks(10, 200)
    for _ in range(2):
        thread(forever, released.allocate, 1000)
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            keep_some()
            os._exit(7)
        wait_for(child, 7)
    assert keep


def fork_under_the_loaders_lock():
    """A callback of dl_iterate_phdr wants the GIL (threadpoolctl has such a one), while the GIL's holder forks."""
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(lambda *_: 0)
    iterate = ctypes.CDLL(None).dl_iterate_phdr
    thread(forever, iterate, callback, None)
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            os._exit(7)
        wait_for(child, 7)


def finalise():
    """The interpreter ends while daemon threads allocate without the GIL, under a lock that is wanted at the end."""
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            for _ in range(3):
                thread(released.busy)
            keep_some()
            return
        wait_for(child, 0)


def leave_from_a_thread():
    """os._exit in one thread while the others allocate."""
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            thread(released.busy)
            thread(forever, keep_some)
            thread(lambda: (keep_some(), os._exit(7)))
            while True:
                keep_some()
        wait_for(child, 7)


def leave_from_a_handler():
    """os._exit in a Python signal handler, at whatever bytecode the timer comes."""
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, lambda *_: os._exit(7))
            thread(released.busy)
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.005))
            while True:
                keep_some()
        wait_for(child, 7)


def signals():
    """A timer of 1 ms whose handler, in Python, allocates. A round is 10 signals."""
    seen = inside = 0

    def handler(*_):
        nonlocal seen, inside
        seen += 1
        if not inside:  # on a slow machine the next one may come before this one is done
            inside = 1
            [bytearray(600 + i) for i in range(20)]
            inside = 0

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    thread(forever, released.allocate, 100)
    for i in range(rounds):
        while seen < 10 * (i + 1):
            keep_some()
            released.allocate(20)
        done()
    signal.setitimer(signal.ITIMER_REAL, 0)


def threads():
    """Short threads of Python and of C at once."""
    for _ in range(rounds):
        some = [threading.Thread(target=keep_some) for _ in range(8)]
        for t in some:
            t.start()
        released.joined()
        for t in some:
            t.join()
        done()


released.arm()
globals()[sys.argv[2]]()

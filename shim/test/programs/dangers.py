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


def small_objects(n=300):
    """Some of every kind, through each of the allocator's four functions."""
    some = []
    for i in range(n):
        some.append(("x" * (i % 400), [i] * (i % 50), {i: bytes(i % 500)}, {"a": i}, bytearray(i % 300)))
        some[-1][1].append(i)
        some[-1][4].extend(b"more" * 20)
    return some


def intact(some):
    for i, (s, l, d, e, b) in enumerate(some):
        if s != "x" * (i % 400) or l != [i] * (i % 50) + [i] or d != {i: bytes(i % 500)} or e != {"a": i} or b != bytes(i % 300) + b"more" * 20:
            sys.exit("object %d has changed" % i)


def objects_in_children():
    """A forked child has its parent's objects: it frees some, changes some, makes more, and forks too."""
    for _ in range(rounds):
        some, others = small_objects(), small_objects()
        child = os.fork()
        if child == 0:
            del others
            intact(some)
            grandchild = os.fork()
            if grandchild == 0:
                del some
                intact(small_objects(1000))
                os._exit(5)
            if os.waitpid(grandchild, 0)[1] != 5 << 8:
                os._exit(8)
            intact(some)
            intact(small_objects(1000))
            os._exit(7)
        thread(intact, some)
        wait_for(child, 7)
        intact(others)


def objects_at_the_end():
    """The interpreter ends while daemon threads make objects."""
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            for _ in range(3):
                thread(forever, small_objects, 50)
            sys.kept = small_objects()
            return
        wait_for(child, 0)


def traced():
    """tracemalloc is put on top and taken away while objects live and other threads make more."""
    import tracemalloc
    for _ in range(3):
        thread(forever, small_objects, 50)
    for _ in range(rounds):
        before = small_objects()
        tracemalloc.start(3)
        within = small_objects()
        intact(before)
        del before
        tracemalloc.stop()
        intact(within)
        done()


def on_top():
    """An extension puts an allocator of its own on top, which hands everything on, and takes it away."""
    for _ in range(rounds):
        before = small_objects()
        if held.on_top(0):
            sys.exit("no allocator to be put on")
        within = small_objects()
        intact(before)
        intact(within)
        del before
        if held.on_top(1):
            sys.exit("it was not on top")
        intact(within)
        done()


def interpreters():
    """Interpreters on several threads at once make objects and end; from 3.12 on each has a GIL of its own."""
    try:
        import _interpreters as those
    except ImportError:
        import _xxsubinterpreters as those
    source = "some = []\nfor k in range(20):\n some.append([('x' * (i % 400), [i], {i: bytes(i % 500)}) for i in range(200)])\n del some[:-2]"

    def one():
        i = those.create()
        those.run_string(i, source)
        those.destroy(i)

    for _ in range(rounds):
        if sys.version_info < (3, 12):
            one()  # interpreters on other threads are not for these versions
        else:
            some = [threading.Thread(target=one) for _ in range(3)]
            for t in some:
                t.start()
            small_objects()
            for t in some:
                t.join()
        done()



released.arm()
globals()[sys.argv[2]]()

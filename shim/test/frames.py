"""Every capture against what Python itself says: function, file and line of each frame, from sys._getframe.

Run with libheapwire_test.so preloaded. Each place is captured twice: with the GIL held (PyDLL) and released (CDLL). Prints
one line with the counts; exit status 1 if any capture differs.
"""
import asyncio
import ctypes
import functools
import itertools
import sys
import threading
import time
import weakref

released, held = ctypes.CDLL(None), ctypes.PyDLL(None)
SIZE = 1 << 20
buffer = ctypes.create_string_buffer(SIZE)
lock = threading.Lock()
QUALIFIED = sys.version_info >= (3, 11)
right = wrong = 0
loud = False


def rows(text):
    for line in text.split("\n"):
        if line.startswith("P "):
            name, file, number = line[2:].split("\t")
            yield name, file, int(number)
        elif line == "...":
            yield "..."
        elif line == "!":
            yield "!"


def expected(frame):
    while frame is not None:
        code = frame.f_code
        yield (code.co_qualname if QUALIFIED else code.co_name, code.co_filename, frame.f_lineno)
        frame = frame.f_back


def readable(name):
    return name.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if any(0xD800 <= ord(c) < 0xE000 for c in name) else name


def check(where, *_, **__):
    global right, wrong
    for library in (released, held):
        with lock:
            library.heapwire_test_capture(buffer, SIZE); line = sys._getframe().f_lineno
            got = list(rows(buffer.value.decode("utf-8")))
        want = list(expected(sys._getframe()))
        want[0] = (want[0][0], want[0][1], line)
        if "..." in got:
            cut = got.index("...")
            same = got[:cut] == want[:cut] and got[cut + 1:] == want[len(want) - (len(got) - cut - 1):] and len(want) >= len(got) - 1  # native frames may be what was left out
        else:
            same = got == want
        if same:
            right += 1
            continue
        wrong += 1
        print("WRONG", where, len(got), "frames, Python has", len(want))
        for pair in itertools.zip_longest(got, want):
            if pair[0] != pair[1]:
                print("   captured", pair[0], "\n   python  ", pair[1])
                break


class Thing:
    def method(self):
        check("method")

    @classmethod
    def of_class(cls):
        (lambda: check("lambda"))()

    def __del__(self):
        check("__del__")

    def __lt__(self, other):
        check("__lt__")
        return False

    def __getattr__(self, name):
        check("__getattr__")
        return 1


def generator():
    check("generator, first")
    yield 1
    check("generator, second")
    yield 2


def delegating():
    yield from generator()


async def coroutine():
    check("coroutine")
    await asyncio.sleep(0)
    check("coroutine after await")
    async for _ in async_generator():
        check("async for")
    await asyncio.gather(inner(), inner())


async def inner():
    await asyncio.sleep(0)
    check("task")


async def async_generator():
    check("async generator")
    yield 1


def recursive(n):
    if n == 0:
        check("recursion")
    else:
        recursive(n - 1)


def over_lines(a,
               b):
    return [a,
            b,
            check("call over several lines"
                  )]


class Manager:
    def __enter__(self):
        check("__enter__")

    def __exit__(self, *_):
        check("__exit__")
        return True


class Quiet:
    """What specialised bytecode calls without a C call."""

    def __init__(self):
        if loud:
            check("specialised __init__")

    def __getitem__(self, key):
        if loud:
            check("specialised __getitem__")
        return self

    @property
    def value(self):
        if loud:
            check("specialised property")
        return 1

    def __contains__(self, key):
        if loud:
            check("specialised __contains__")
        return True

    def __call__(self, n, *, m=1):
        if loud:
            check("specialised __call__")


class Derived(Quiet):
    def __init__(self):
        super().__init__()

    def __getattr__(self, name):
        if loud:
            check("specialised __getattr__")
        return 1


def quiet_generator():
    if loud:
        check("specialised generator")
    yield 1


def specialised():
    global loud
    for i in range(400):
        loud = i >= 398
        Quiet()
        thing = Derived()
        thing[1].value
        1 in thing
        thing(1, m=2)
        thing.no_such
        for _ in quiet_generator():
            pass


def compiled(source, file, name="check"):
    exec(compile(source, file, "exec"), {name: check})


def in_thread(function, stack=0):
    threading.stack_size(stack)
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
    threading.stack_size(0)


def main():
    check("function")
    Thing().method()
    Thing.of_class()
    Thing().anything
    list(generator())
    list(delegating())
    [check("list comprehension") for _ in range(1)]
    {k: check("dict comprehension") for k in range(1)}
    list(check("generator expression") for _ in range(1))
    list(map(lambda _: check("map"), [1]))
    sorted([Thing(), Thing()])
    functools.partial(check, "partial")()
    functools.reduce(lambda a, b: check("reduce"), [1, 2])
    asyncio.run(coroutine())
    over_lines(1, 2)
    for depth in (3, 30, 60, 90, 100, 120, 130, 900):
        recursive(depth)
    sys.setrecursionlimit(30000)
    in_thread(lambda: recursive(5000), 256 << 20)
    in_thread(lambda: check("thread"))
    callback = ctypes.CFUNCTYPE(None)(lambda: check("C callback"))
    callback()
    ctypes.CFUNCTYPE(None)(lambda: ctypes.CFUNCTYPE(None)(lambda: check("C callback in a C callback"))())()
    compiled("def f():\n  x = 1\n\n  check('exec')\nf()", "<dynamic>")
    compiled("def \u0444\u0443\u043d\u043a():\n  check('cyrillic')\n\u0444\u0443\u043d\u043a()", "\u043f\u0443\u0442\u044c/\u00e9.py")
    compiled("def \u00e9t\u00e9():\n  check('latin-1')\n\u00e9t\u00e9()", "\u00e9.py")
    compiled("\n" * 70000 + "def big():\n  check('line beyond 65535')\nbig()", "\U0001F600.py")
    for i in range(300):  # freed code objects leave their addresses to the next ones
        compiled("def fn%03d():\n  pass\n  check('reused address')\nfn%03d()" % (i, i), "<reuse-%03d>" % i)
    long = "".join("  x%d = %d\n" % (i, i) for i in range(3000))
    compiled("def long():\n" + long + "  check('long function')\n" + long + "long()", "<long>")
    with Manager():
        try:
            1 / 0
        except ZeroDivisionError:
            check("except")
            raise
        finally:
            check("finally")
    thing = Manager()
    reference = weakref.ref(thing, lambda _: check("weakref callback"))
    del thing
    assert reference() is None
    specialised()
    sys.settrace(lambda *a: None)
    check("settrace")
    sys.settrace(None)
    sys.setprofile(lambda *a: None)
    check("setprofile")
    sys.setprofile(None)
    threads = [threading.Thread(target=lambda: [check("threads at once") for _ in range(20)]) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    # Where the C library cannot be asked for an object (glibc before 2.35) the clock lists them once a second.
    end = time.monotonic() + 30
    native = released.heapwire_test_against_libgcc()
    while native < 5 and time.monotonic() < end:
        time.sleep(0.05)
        native = released.heapwire_test_against_libgcc()
    if native < 5:
        print("WRONG native stack: differs from libgcc's at frame", -native - 1)
    print(sys.version.split()[0], right, "right", wrong, "wrong,", native, "native frames as libgcc has them")
    return 1 if wrong or native < 5 else 0


if __name__ == "__main__":
    sys.exit(main())

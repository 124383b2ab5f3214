"""A program and its descriptors, under the shim with a dump every 100 ms. argv[1] says what it does with them; it prints what came of it."""
import ctypes, glob, os, resource, sys, time

way = sys.argv[1]
dump = ctypes.CDLL(None).heapwire_dump


def dumps():
    return len(glob.glob(os.environ["HEAPWIRE_SPOOL"] + "/*/*.heap"))


def table(thread):
    return sorted(map(int, os.listdir("/proc/self/task/%s/fd" % thread)))


def clock():
    for thread in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/comm" % thread) as f:
            if f.read() == "heapwire\n":
                return thread


if way == "own":
    # Of what the program has open before the clock starts, and while it runs, the clock has nothing.
    pipe = os.pipe()
    assert dump() == 0
    print(table(clock()))
elif way == "none left":
    # What a job dies of that leaks descriptors. What it needs to look is opened before.
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    results = [dump() for _ in range(3)]
    for fd in taken:
        os.close(fd)
    print(results, dumps() >= 3)
elif way == "end of file":
    # Whoever reads what this process writes sees the end when it closes its side, not when it ends: the answer is given after that.
    assert dump() == 0
    os.close(1)
    sys.stdin.read()  # until the other side has seen it
    os.write(2, b"went on")
    os._exit(0)
elif way == "close all":
    before = dumps()
    deadline = time.monotonic() + 60
    while dumps() < before + 3 and time.monotonic() < deadline:
        x = bytearray(1000000)
        os.closerange(3, 256)
    assert dump() == 0
    print(dumps() > before + 3)

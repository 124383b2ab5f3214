"""Does what an exporter in the process must not disturb, and prints what came of it. With the exporter and without, the
answers are the same.

    answers.py exporter|alone ROUNDS
"""
import atexit, ctypes, faulthandler, json, multiprocessing, os, signal, sys, tempfile, threading, time

FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
kept = []
answers = {}


class Sigaction(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


libc = ctypes.CDLL(None)


def actions():
    """What is done about each signal: the object that has the handler, or 0 or 1, the flags, the mask."""
    with open("/proc/self/maps") as f:
        mapped = [line.split(None, 5) for line in f]
    objects = [[int(end, 16) for end in m[0].split("-")] + [os.path.basename(m[5].strip())] for m in mapped if len(m) == 6]
    out = {}
    for number in range(1, 65):
        act = Sigaction()
        if libc.sigaction(number, None, ctypes.byref(act)) == 0:
            handler = act.handler or 0
            out[number] = [next((name for start, end, name in objects if start <= handler < end), handler), act.flags, act.mask[0]]
    return out


def ours():
    """The status of each thread that is not the program's."""
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/status" % task) as f:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
        except OSError:
            continue  # it has ended
        if status["Name"] == "heapwire":
            yield status


def leak(megabytes):
    for _ in range(megabytes * 10):
        kept.append(bytearray(100000))


def until(condition):
    deadline = time.monotonic() + 100
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("waited in vain for " + condition.__name__)
        time.sleep(0.01)


def exporter_is_there():
    leak(1) if len(kept) < 1000 else None
    return len(list(ours())) >= 3


def signals():
    caught = []
    signal.signal(signal.SIGTERM, lambda *_: caught.append("TERM"))
    signal.signal(signal.SIGCHLD, lambda *_: caught.append("CHLD"))
    signal.signal(signal.SIGPROF, lambda *_: caught.append("PROF"))
    interrupts = 0
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGCHLD)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        except KeyboardInterrupt:
            interrupts += 1
    answers["interrupts"], answers["TERM"], answers["CHLD"] = interrupts, caught.count("TERM"), caught.count("CHLD")
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)

    def profiled():
        sum(range(10000))
        return caught.count("PROF") >= 20

    until(profiled)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def tracebacks():
    with tempfile.TemporaryFile("w+") as f:
        faulthandler.dump_traceback(f, all_threads=False)
        faulthandler.register(signal.SIGUSR1, f, all_threads=False)
        os.kill(os.getpid(), signal.SIGUSR1)
        faulthandler.unregister(signal.SIGUSR1)
        f.seek(0)
        answers["tracebacks"] = f.read().count("in tracebacks")
    pid = os.fork()
    if pid == 0:
        # In a child: the fault ends it.
        with open(os.devnull, "w") as f:
            faulthandler.enable(f)
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            ctypes.string_at(0)
        os._exit(0)
    answers["fault"] = os.waitpid(pid, 0)[1] & 0x7F


def work(n):
    leak(2)
    return n * n, os.getpid()


def pools(rounds):
    context = multiprocessing.get_context("fork")
    squares = 0
    for _ in range(rounds):
        pool = context.Pool(2)
        for square, pid in pool.map(work, range(4), 1):
            squares += square
            print("pid", pid, file=sys.stderr)
        pool.close()
        pool.join()
    answers["squares"] = squares


def daemon():
    while True:
        len([bytearray(100000) for _ in range(10)])


def main():
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: None)
    if sys.argv[1] == "exporter":
        until(exporter_is_there)
    else:
        leak(1)
    answers["actions"] = actions()
    masked = {int(status["SigBlk"], 16) for status in ours()}
    # 32 and 33 are the C library's own, and SIGKILL and SIGSTOP cannot be blocked.
    answers["may interrupt us"] = sorted(n for n in range(1, 65) if n not in FAULTS | {9, 19, 32, 33} and any(not m >> (n - 1) & 1 for m in masked))
    signals()
    tracebacks()
    pools(int(sys.argv[2]))
    threading.Thread(target=daemon, daemon=True).start()
    atexit.register(lambda: print("atexit"))
    print("pid", os.getpid(), file=sys.stderr)
    print(json.dumps(answers, sort_keys=True))
    sys.exit(7)


if __name__ == "__main__":
    main()

"""Loads the library as the shim would, and prints what became of signals, memory, forks and the time to stop."""
import ctypes, json, os, signal, sys, threading, time

library, spool = sys.argv[1], sys.argv[2]


class Sigaction(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)


def handlers():
    out = {}
    for s in range(1, 65):
        act = Sigaction()
        if libc.sigaction(s, None, ctypes.byref(act)) == 0:
            # libc sets SA_RESTORER on whatever goes through it.
            out[s] = [act.handler or 0, act.flags & ~0x04000000]
    return out


def resident(key="VmRSS"):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024


import faulthandler

faulthandler.enable()
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append("TERM"))
before, rss, threads = handlers(), resident(), len(os.listdir("/proc/self/task"))
result = {}
says = []
SAY = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
say = SAY(lambda line: says.append(line.decode()))


def load():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    began = time.monotonic()
    lib = ctypes.CDLL(library)
    result["lib"] = lib
    result["start"] = lib.heapwire_inproc_start(spool.encode(), say, 1, None)
    result["start_seconds"] = time.monotonic() - began


t = threading.Thread(target=load)
t.start()
t.join()
lib = result.pop("lib")
result["handlers_changed"] = {s: [before[s], h] for s, h in handlers().items() if h != before.get(s)}

# Let it deliver, then look.
deadline = time.monotonic() + 20
while any(f.endswith(".heap") for _, _, files in os.walk(spool) for f in files) and time.monotonic() < deadline:
    time.sleep(0.01)
result["left"] = [f for _, _, files in os.walk(spool) for f in files if f.endswith(".heap")]
result["resident_bytes"] = resident() - rss
result["threads"] = len(os.listdir("/proc/self/task")) - threads

# Threads of the runtime: which signals are not blocked in them.
unblocked = 0
for task in os.listdir("/proc/self/task"):
    if int(task) != os.getpid():
        with open(f"/proc/self/task/{task}/status") as f:
            for line in f:
                if line.startswith("SigBlk:"):
                    unblocked |= ~int(line.split()[1], 16) & (1 << 64) - 1
result["unblocked_signals"] = [s for s in range(1, 65) if unblocked >> (s - 1) & 1]

os.kill(os.getpid(), signal.SIGTERM)
result["sigterm"] = got

# A child: nothing starts or stops there, no claim is kept, it can end.
children = 0
for _ in range(50):
    pid = os.fork()
    if pid == 0:
        again = lib.heapwire_inproc_start(spool.encode(), None, 1, None)
        lib.heapwire_inproc_stop(1000)
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
        os._exit(0 if again == 3 and not any(h.startswith(spool + "/") and not h.endswith("/inproc.crash") for h in held) else 1)
    children += os.waitpid(pid, 0)[1] == 0
result["children_unharmed"] = children

began = time.monotonic()
lib.heapwire_inproc_stop(900)
result["stop_seconds"] = time.monotonic() - began
result["says"] = says
print(json.dumps(result))

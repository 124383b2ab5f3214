"""Runs one program of this folder and prints what its work cost, as JSON: run.py NAME [ARGUMENT]. The work comes after the
imports and one small pass, so that the start of the interpreter, and of a profiler, is not in it."""
import importlib
import json
import os
import resource
import sys
import time

program = importlib.import_module(sys.argv[1])
arguments = [int(a) for a in sys.argv[2:]]
scale = float(os.environ.get("BENCH_SCALE", "1"))
program.work(0.02 * scale, *arguments)
before = resource.getrusage(resource.RUSAGE_SELF)
wall = time.perf_counter()
program.work(scale, *arguments)
wall = time.perf_counter() - wall
after = resource.getrusage(resource.RUSAGE_SELF)
with open("/proc/self/status") as status:  # ru_maxrss begins with what the parent had
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
print(json.dumps({
    "cpu_s": after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
    "user_s": after.ru_utime - before.ru_utime,
    "wall_s": wall,
    "faults": after.ru_minflt - before.ru_minflt,
    "rss_bytes": peak,
}))

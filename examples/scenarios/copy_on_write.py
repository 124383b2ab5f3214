"""Workers that only read what they inherited: in Python reading writes reference counts, and pages become their own."""
import os
import sys

import heapwire

dataset = [i for i in range(1000, 2001000)]


def read():
    total = 0
    for item in dataset:
        total += item
    return total


def await_end_of(pipe):
    os.read(pipe, 1)


heapwire.dump()
all_forked, begin = os.pipe()
all_dumped, release = os.pipe()
ready, done = os.pipe()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        os.close(begin)
        os.close(release)
        await_end_of(all_forked)
        heapwire.dump()  # all five share the pages
        os.write(done, b"x")
        await_end_of(all_dumped)
        read()
        heapwire.dump()
        os._exit(0)
    children.append(pid)
os.close(begin)
for _ in children:
    os.read(ready, 1)
os.close(release)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))

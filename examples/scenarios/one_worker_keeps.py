"""Four forked workers deserialise the same broadcasts; one of them keeps what it gets."""
import os
import pickle
import sys

import heapwire

LEAKING = 2
BROADCAST = pickle.dumps([bytes([i % 256]) * 4000 for i in range(500)])
kept = []


def receive(keep):
    message = pickle.loads(BROADCAST)  # LEAK: messages
    if keep:
        kept.append(message)


def worker(rank):
    for _ in range(4):
        for _ in range(4):
            receive(rank == LEAKING)
        heapwire.dump()
    os._exit(0)


children = []
for rank in range(4):
    pid = os.fork()
    if pid == 0:
        worker(rank)
    children.append(pid)
print(children[LEAKING], flush=True)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))

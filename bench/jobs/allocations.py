"""Allocation-heavy: buffers of 1 to 61 KB with 64 of them alive, strings that are joined, lists and dicts, JSON."""
import json
import time


def buffers(n):
    window = [None] * 64
    for i in range(n):
        window[i & 63] = bytearray(1000 + (i * 7919) % 60000)


def strings(n):
    parts = ["x" * (140 + i % 80) for i in range(n)]
    return len("".join(parts))


def containers(n):
    rows = []
    for i in range(n):
        rows.append({"id": i, "values": list(range(i % 100)), "tags": {"a": i, "b": str(i)}})
        if len(rows) > 500:
            rows = []


def documents(n):
    record = {"items": [{"id": i, "name": "item %d" % i, "price": i * 1.5} for i in range(200)]}
    for _ in range(n):
        json.loads(json.dumps(record))


cpu, wall = time.process_time(), time.perf_counter()
buffers(40000)
for _ in range(8):
    strings(20000)
containers(30000)
documents(150)
print(json.dumps({"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}))

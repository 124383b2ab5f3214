"""Call-heavy: functions and methods that allocate next to nothing."""
import json
import time


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Counter:
    def __init__(self):
        self.total = 0

    def add(self, n):
        self.total += n
        return self

    def add_twice(self, n):
        return self.add(n).add(n)


def methods(n):
    counter = Counter()
    for i in range(n):
        counter.add_twice(i)
    return counter.total


cpu, wall = time.process_time(), time.perf_counter()
fibonacci(25)
methods(600000)
print(json.dumps({"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}))

"""Functions and methods that allocate next to nothing."""


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


def work(scale):
    for _ in range(int(8 * scale)):
        fibonacci(20)
    counter = Counter()
    for i in range(int(300000 * scale)):
        counter.add_twice(i)

"""A program with two back ends; the second keeps its workspaces. Both serve the same number of steps."""
import os

import heapwire

weights = [bytearray(60000) for _ in range(200)]
workspaces = []


def attention_first(size):
    return bytearray(size)


def attention_second(size):
    workspaces.append(bytearray(size))  # LEAK: workspaces
    return workspaces[-1]


attention = {"first": attention_first, "second": attention_second}[os.environ["BACKEND"]]
for number in range(3):
    for _ in range(200):
        attention(50000)
    heapwire.step(number + 1)
    heapwire.dump()

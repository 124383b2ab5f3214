"""A compiler that keeps 22 KB of each call: a slow leak, 2000 calls, at the default rate of sampling."""
import heapwire

graphs = []


def compile_graph():
    graphs.append([bytearray(2000) for _ in range(11)])  # LEAK: graphs


for _ in range(4):
    for _ in range(500):
        compile_graph()
    heapwire.dump()

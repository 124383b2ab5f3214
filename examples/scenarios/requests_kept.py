"""A server that maps each request's sequences to their group and never forgets one: the leak is two calls below the step."""
import heapwire

seq_id_to_seq_group = {}


def add_request(number):
    seq_id_to_seq_group[number] = bytearray(8000)  # LEAK: groups


def step(number):
    for request in range(500):
        add_request((number, request))


for number in range(4):
    step(number)
    heapwire.step(number + 1)
    heapwire.dump()

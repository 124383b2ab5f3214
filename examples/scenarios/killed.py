"""A leak, and no chance to say a last word: the process is killed, as the kernel does when memory is out."""
import os
import signal

import heapwire

outputs = []


def generate(prompts):
    for _ in range(prompts):
        outputs.append(bytearray(30000))  # LEAK: outputs


for _ in range(4):
    generate(200)
    heapwire.dump()
os.kill(os.getpid(), signal.SIGKILL)

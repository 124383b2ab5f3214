"""A server that believes every length it reads from the wire; one of them is nonsense.

    python giant_allocation.py [--claim 8589934592]

A message is eight bytes of length and then that many bytes. The server makes room for all of them before the first has
come. A client sends a few good messages and then a header that claims 8 GiB, as a port scan does that speaks another
protocol. The request is granted, since nothing is touched yet, or it is refused: that depends on the machine.

What the profile must show
    read_message   line marked `LEAK: message`   one request, exactly as long as claimed, and the stack of it, noted when
                                                 it was made: resident memory has hardly moved, and whoever looks at
                                                 resident memory alone sees nothing until the pages are touched

The last line of output is the truth (see truth.py).
"""
import argparse
import os
import socket
import struct
import sys
import threading

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

GOOD = (b"hello", b"x" * 100000, b"")
HEADER = struct.Struct("!Q")


def read_message(connection):
    header = connection.recv(HEADER.size, socket.MSG_WAITALL)
    if len(header) < HEADER.size:
        return None
    length, = HEADER.unpack(header)
    if length == 0:
        return b""
    try:
        body = connection.recv(length, socket.MSG_WAITALL)  # LEAK: message
    except MemoryError:
        return None
    return body if len(body) == length else None


def serve(listener):
    connection, _ = listener.accept()
    with connection:
        while True:
            message = read_message(connection)
            if message is None:
                return
            connection.sendall(HEADER.pack(len(message)))


def talk(client):
    for message in GOOD:
        client.sendall(HEADER.pack(len(message)) + message)
        answer, = HEADER.unpack(client.recv(HEADER.size, socket.MSG_WAITALL))
        assert answer == len(message), (answer, len(message))


def hang_up(client):
    """Ends what the server waits for, and returns when it has given up."""
    try:
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
    except OSError:
        pass  # it had given up before: the request was refused


def peak_mib():
    """The most memory that this process has had resident."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--claim", type=int, default=8 << 30, help="bytes that the bad header announces")
    parser.add_argument("--truth", default="", help="append the truth to this file instead of printing it")
    parser.add_argument("--hold", action="store_true", help="keep the connection open until standard input ends")
    args = parser.parse_args()

    listener = socket.create_server(("127.0.0.1", 0))
    server = threading.Thread(target=serve, args=(listener,), name="listener")
    server.start()
    client = socket.create_connection(listener.getsockname())
    talk(client)
    client.sendall(HEADER.pack(args.claim) + b"nothing of the kind")

    # An object of bytes has a header of its own before what it holds.
    sites = {"message": (1, args.claim + sys.getsizeof(b""))}
    if args.hold:
        truth.tell(args.truth, sites)
        truth.hold(True)
    hang_up(client)
    server.join()
    print("asked for %.1f GiB; resident memory never exceeded %.0f MiB" % (args.claim / 2**30, peak_mib()), flush=True)
    if not args.hold:
        truth.tell(args.truth, sites)


if __name__ == "__main__":
    main()

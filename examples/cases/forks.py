"""os.fork: the parent's blocks stay the parent's, the child's are its own, though it frees half of what it inherited."""
import argparse
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

kept = []


def before(blocks):
    for _ in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: before


def after(blocks):
    del kept[::2]
    for _ in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: after


def child(blocks, truth_file, ready, release):
    after(blocks)
    truth.tell(truth_file, {"after": (blocks, truth.BLOCK)}, last=False)
    os.write(ready, b"x")
    os.read(release, 1)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--truth", default="")
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()

    before(args.blocks)
    is_ready, ready = os.pipe()
    may_end, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        child(args.blocks, args.truth, ready, may_end)
    os.read(is_ready, 1)
    truth.tell(args.truth, {"before": (args.blocks, truth.BLOCK)})
    truth.hold(args.hold)
    os.close(end)
    _, status = os.waitpid(pid, 0)
    sys.exit(status != 0)


if __name__ == "__main__":
    main()

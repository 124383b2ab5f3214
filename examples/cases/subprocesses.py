"""subprocess: a Python child is a process of its own with its own profile; a shell and `true` are none."""
import argparse
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import truth  # noqa: E402

kept = []


def fill(blocks):
    for _ in range(blocks):
        kept.append(bytearray(truth.BLOCK))  # LEAK: fill


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--truth", default="")
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--child", action="store_true", help="be the child: say when the truth is told, wait for the end of input")
    args = parser.parse_args()

    fill(args.blocks)
    if args.child:
        truth.tell(args.truth, {"fill": (args.blocks, truth.BLOCK)}, last=False)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        truth.hold(True)
        return
    subprocess.check_call(["sh", "-c", "true; sh -c true"])
    child = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--child", "--blocks", str(args.blocks), "--truth", args.truth],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    truth.tell(args.truth, {"fill": (args.blocks, truth.BLOCK)})
    truth.hold(args.hold)
    child.communicate()
    sys.exit(child.returncode)


if __name__ == "__main__":
    main()

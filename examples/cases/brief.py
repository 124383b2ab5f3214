"""A short job with output on both streams and an exit status of its own."""
import sys

kept = [bytearray(64 * 1024) for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 64)]
print("output of the job")
sys.stderr.write("a word of the job on stderr\n")
sys.exit(7)

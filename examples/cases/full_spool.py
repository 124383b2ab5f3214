"""Cannot write files larger than 4 KiB until its standard input has a line: a full disk that is cleared later.

Python ignores SIGXFSZ, so a write beyond the limit fails with an error, as it does on a full disk.
"""
import resource
import sys

soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
kept = [bytearray(64 * 1024) for _ in range(64)]
print("limited", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
sys.stdin.read()
print("done")
sys.exit(7)

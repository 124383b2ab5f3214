"""The next process with an exporter: it lives until the spool, its own folder left out, is empty."""
import glob, os, sys, time

kept = []
deadline = time.monotonic() + 100
while True:
    kept.append(bytearray(100000))
    left = [d for d in glob.glob(os.path.join(sys.argv[1], "*", "*.heap")) if "-%d-" % os.getpid() not in d]
    if not left:
        break
    if time.monotonic() > deadline:
        sys.exit("left: %s" % left)
    time.sleep(0.02)

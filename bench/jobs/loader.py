"""A data loader: four threads read records into buffers, batches go through a queue, the consumer keeps the last ones."""
import queue
import threading

RECORD = bytes(range(256)) * 64


def produce(out, batches):
    for b in range(batches):
        batch = []
        for i in range(64):
            image = bytearray(RECORD[: 4096 + (b * 977 + i * 131) % 12000])
            batch.append({"image": image, "label": i, "path": "train/%06d/%03d.bin" % (b, i)})
        out.put(b"".join(r["image"] for r in batch))


def work(scale):
    out, threads = queue.Queue(maxsize=8), 4
    batches = max(1, int(250 * scale))
    workers = [threading.Thread(target=produce, args=(out, batches)) for _ in range(threads)]
    for w in workers:
        w.start()
    window = [None] * 16
    for i in range(threads * batches):
        window[i % 16] = out.get()
    for w in workers:
        w.join()

"""JSON, there and back."""
import json

RECORD = {"items": [{"id": i, "name": "item %d" % i, "price": i * 1.5} for i in range(200)]}


def work(scale):
    for _ in range(int(500 * scale)):
        json.loads(json.dumps(RECORD))

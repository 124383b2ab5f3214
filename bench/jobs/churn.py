"""Lists, dicts and small objects, five hundred alive."""


def work(scale):
    rows = []
    for i in range(int(90000 * scale)):
        rows.append({"id": i, "values": list(range(i % 100)), "tags": {"a": i, "b": str(i)}})
        if len(rows) > 500:
            rows = []

"""A small reinforcement-learning loop: rollouts of steps, a replay buffer with eviction, batches, big arrays, a JSON log."""
import array
import collections
import json
import random


def rollout(rng, steps):
    state, out = [rng.random() for _ in range(32)], []
    for t in range(steps):
        action = int(rng.random() * 8)
        state = [s * 0.9 + 0.1 * action for s in state]
        out.append({"state": array.array("d", state), "action": action, "reward": rng.random(), "t": t})
    return out


def work(scale):
    rng = random.Random(7)
    replay = collections.deque(maxlen=3000)
    log = []
    for step in range(max(1, int(60 * scale))):
        replay.extend(rollout(rng, 150))
        gradients = [bytearray(256 << 10) for _ in range(8)] + [bytearray(16 << 20)]
        for _ in range(4):
            batch = [replay[int(rng.random() * len(replay))] for _ in range(64)]
            flat = array.array("d")
            for row in batch:
                flat.extend(row["state"])
        log.append(json.dumps({"step": step, "gradients": sum(map(len, gradients)), "reward": sum(r["reward"] for r in batch)}))

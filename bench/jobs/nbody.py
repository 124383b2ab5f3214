"""Floats: small objects that live for one expression."""


def bodies():
    return [[[float(i + 1), float(i * 2 - 3), float(3 - i)], [0.1 * i, 0.2, -0.1 * i], 1.0 / (i + 1)] for i in range(5)]


def advance(system, steps, dt=0.01):
    pairs = [(a, b) for i, a in enumerate(system) for b in system[i + 1:]]
    for _ in range(steps):
        for (p, v, m), (q, w, n) in pairs:
            dx, dy, dz = p[0] - q[0], p[1] - q[1], p[2] - q[2]
            force = dt / ((dx * dx + dy * dy + dz * dz + 0.01) ** 1.5)
            for axis, d in enumerate((dx, dy, dz)):
                v[axis] -= d * n * force
                w[axis] += d * m * force
        for p, v, _ in system:
            for axis in range(3):
                p[axis] += dt * v[axis]


def work(scale):
    advance(bodies(), int(9000 * scale))

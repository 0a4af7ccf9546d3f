"""Writes directions.json: a scalar implementation in integers and `math`, apart from the one it checks.

    python tests/vectors/make_directions.py

Seeds are strings, since not every JSON reader keeps 64-bit integers; words are hexadecimal; values are decimals that
read back to exactly one float32.
"""

import json
import math
import struct
from pathlib import Path

MASK = 0xFFFFFFFF
PHILOX = [  # Random123's known answers: zeros, ones, digits of pi
    ([0, 0, 0, 0], [0, 0]),
    ([MASK] * 4, [MASK] * 2),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]),
    ([1, 2, 3, 4], [5, 6]),
    ([0, MASK, 0, 1], [0x80000000, 0]),
]
DRAWS = [  # kind, seed, unit, size, iteration, directions, examples
    ("normal", 0, 0, 4, 0, 1, [0]),
    ("normal", 1, 0, 1, 0, 1, [0]),
    ("normal", 42, 3, 7, 2, 1, [0, 1, 2]),
    ("normal", 2**64 - 1, 11, 13, 5, 4, [0, 7]),
    ("normal", 0x0123456789ABCDEF, 2**32 - 1, 10, 1000, 3, [2**32 - 1]),
    ("normal", 2**63, 1, 64, 9, 2, [3, 1]),
    ("rademacher", 0, 0, 8, 0, 1, [0]),
    ("rademacher", 42, 3, 130, 2, 1, [0, 1]),
    ("rademacher", 2**64 - 1, 11, 33, 5, 4, [7]),
    ("rademacher", 0x0123456789ABCDEF, 2**32 - 1, 257, 1000, 3, [5]),
    ("orthogonal", 0, 0, 1, 0, 1, [0, 1]),
    ("orthogonal", 42, 3, 4, 2, 4, [0, 1]),
    ("orthogonal", 2**64 - 1, 11, 5, 5, 3, [2, 0, 7]),
    ("orthogonal", 0x0123456789ABCDEF, 2**32 - 1, 130, 1000, 2, [127, 128]),
    ("orthogonal", 2**63, 1, 256, 9, 1, [255, 256]),
    ("orthogonal", 7, 2, 3, 1, 1, [2**32 - 2]),
]


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second & MASK, (first >> 32) ^ c[3] ^ k[1], first & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def normals(x):
    u = [(word + 0.5) * 2.0**-32 for word in x]
    return [
        math.sqrt(-2.0 * math.log(u[pair])) * turn(2.0 * math.pi * u[pair + 1])
        for pair in (0, 2)
        for turn in (math.cos, math.sin)
    ]


def signs(x):
    return [1.0 if word >> bit & 1 else -1.0 for word in x for bit in range(32)]


def row(kind, seed, unit, size, iteration, directions, k, example):
    if kind == "orthogonal":
        return orthogonal(seed, unit, size, iteration, example * directions + k)
    return independent(kind, seed, unit, size, iteration * directions + k, example)


def orthogonal(seed, unit, size, iteration, number):
    side = 1
    while side < size:
        side *= 2
    block, r = divmod(number, side)
    drawn = independent("rademacher", seed, unit, size, iteration, block)
    return [sign * (-1) ** (r & i).bit_count() for i, sign in enumerate(drawn)]


def independent(kind, seed, unit, size, step, example):
    values = []
    while len(values) < size:
        position = len(values) // (4 if kind == "normal" else 128)
        x = philox([position, unit, step, example], [seed & MASK, seed >> 32])
        values += normals(x) if kind == "normal" else signs(x)
    return [decimal(value) for value in values[:size]]


def decimal(value):
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    return float(f"{single:.9g}")


def main():
    vectors = {
        "philox4x32-10": [
            {"counter": words(counter), "key": words(key), "out": words(philox(counter, key))}
            for counter, key in PHILOX
        ],
        "draws": [
            {
                "kind": kind,
                "seed": str(seed),
                "unit": unit,
                "size": size,
                "iteration": iteration,
                "directions": directions,
                "examples": examples,
                "rows": [
                    row(kind, seed, unit, size, iteration, directions, k, example)
                    for k in range(directions)
                    for example in examples
                ],
            }
            for kind, seed, unit, size, iteration, directions, examples in DRAWS
        ],
    }
    Path(__file__).with_name("directions.json").write_text(json.dumps(vectors, separators=(",", ":")) + "\n")


def words(values):
    return [f"{value:08x}" for value in values]


if __name__ == "__main__":
    main()

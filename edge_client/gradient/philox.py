"""Random directions, the same numbers on the server, in every client and in the simulator.

A direction is never stored or sent: any part of it is drawn again from the step's seed. What follows is the whole
definition; an implementation in another language needs nothing else, and ``tests/vectors/directions.json`` checks it.

**Generator.** Philox4x32-10 of Random123. It maps a counter of four 32-bit words and a key of two to four words:

- key: the seed, an unsigned 64-bit integer; word 0 is its low half, word 1 its high half;
- counter: word 0 is the position (below), word 1 the unit's number, word 2 ``iteration * K + k`` for direction ``k`` of
  the ``K`` of a step, word 3 the example's index in the batch. All are unsigned, 32 bits. Words 2 and 3 are others for
  ``orthogonal``.

**Which weights.** A unit's weights are taken as one flat vector: its tensors in the manifest's order, each in row-major
order. Rows of a draw are (direction, example) pairs, directions outermost.

**normal.** The four words ``x0..x3`` at position ``p`` give weights ``4p .. 4p + 3``. In double precision::

    u = (x + 0.5) * 2**-32                    never 0 nor 1
    v[4p]     = sqrt(-2 ln u0) * cos(2 pi u1)
    v[4p + 1] = sqrt(-2 ln u0) * sin(2 pi u1)
    v[4p + 2] = sqrt(-2 ln u2) * cos(2 pi u3)
    v[4p + 3] = sqrt(-2 ln u2) * sin(2 pi u3)

each rounded to the nearest float32. Mathematical libraries differ in the last bits of a double, so two platforms may
differ by one float32 rounding in rare values; the words themselves are exact.

**rademacher.** The 128 bits at position ``p`` give the signs of weights ``128p .. 128p + 127``: bit ``b`` of word
``j``, counted from the least significant, belongs to weight ``128p + 32j + b``: +1 when set, -1 when clear. Exact on
every platform.

**orthogonal.** Rows of a Hadamard matrix under random signs. With ``s`` the smallest power of two that is not below the
unit's size, direction ``k`` for example ``e`` has the number ``n = e * K + k``; it is row ``r = n mod s`` of block
``n div s``. A block has signs of its own, drawn as for ``rademacher`` with counter word 2 the iteration and word 3 the
block, and::

    v[i] = sign[i] * (-1) ** popcount(r & i)    i from 0 to size - 1; & is the bitwise and

``n`` is below 2**32. Exact on every platform. Each row alone is a fair draw of signs, so that ``E[v v^T] = I``. Rows of
a block are orthogonal where the size is a power of two; whatever the size, among the first ``2**q`` rows of a block the
products of two weights' entries sum to zero unless the weights' indices are equal modulo ``2**q``. A whole block
therefore gives back the gradient without noise.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import SupportsIndex, get_args

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import DirectionError
from edge_client.wire.protocol import DirectionKind

Words = NDArray[np.uint64]  # 32-bit words, kept in 64 bits so that a product keeps its high half

WORD = 1 << 32
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WEIGHTS_PER_COUNTER = {"normal": 4, "rademacher": 128, "orthogonal": 128}
CHUNK = 8192  # counters generated together: their buffers stay in the processor's cache

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def draw(
    seed: int,
    unit: int,
    size: int,
    *,
    iteration: int = 0,
    directions: int = 1,
    examples: int | Sequence[int] = 1,
    only: Sequence[int] | None = None,
    kind: DirectionKind = "normal",
) -> NDArray[np.float32]:
    """Draw the directions of one unit in one step, as rows ``[directions x examples, size]``.

    Args:
        seed: the step's 64-bit seed.
        unit: the unit's number in the manifest.
        size: how many weights the unit has.
        iteration: the step's number within the round.
        directions: K, how many directions the step takes. It is part of the counter: all parties must agree on it.
        examples: how many examples the batch has, or the indices of those wanted.
        only: which of the K directions are wanted; all when left out.
        kind: ``normal``, ``rademacher`` or ``orthogonal``.
    """
    if kind not in get_args(DirectionKind):
        raise DirectionError(f"kind must be one of {', '.join(get_args(DirectionKind))}, got {kind!r}")
    key = _within("seed", seed, 1 << 64)
    unit = _within("unit", unit, WORD)
    size = _within("size", size, WORD, low=1)
    directions = _within("directions", directions, WORD, low=1)
    iteration = _within("iteration", iteration, WORD // directions)
    chosen = range(directions) if only is None else [_within("only", k, directions) for k in only]
    batch = _examples(examples, WORD // directions if kind == "orthogonal" else WORD)

    if kind == "orthogonal":
        numbers = np.array([example * directions + k for k in chosen for example in batch], dtype=np.uint64)
        return _orthogonal(key, unit, size, iteration, numbers)
    steps = [iteration * directions + k for k in chosen for _ in batch]
    streams = np.array([steps, [example for _ in chosen for example in batch]], dtype=np.uint64)
    return _independent(key, unit, size, streams, kind)


def block(size: int) -> int:
    """Count the orthogonal directions that hold all of a unit with so many weights; the next ones repeat them."""
    return 1 << (size - 1).bit_length()


def philox(counter: Sequence[Words], key: int) -> list[Words]:
    """Philox4x32-10 of counters given as four arrays of words, which it overwrites."""
    c0, c1, c2, c3 = counter
    p0, p1 = np.empty_like(c0), np.empty_like(c0)
    key0, key1 = key % WORD, key // WORD
    for _ in range(ROUNDS):
        np.multiply(c0, MULTIPLIERS[0], out=p0)
        np.multiply(c2, MULTIPLIERS[1], out=p1)
        _mix(c1, p1, key0, scratch=c0)
        _mix(c3, p0, key1, scratch=c2)
        c0, c1, c2, c3, p0, p1 = c1, p1, c3, p0, c0, c2  # the two spent arrays take the next round's products
        key0, key1 = (key0 + KEY_STEPS[0]) % WORD, (key1 + KEY_STEPS[1]) % WORD
    return [c0, c1, c2, c3]


def _mix(word: Words, product: Words, key: int, scratch: Words) -> None:
    """``word ^= high half of product ^ key``; leaves the low half in ``product``."""
    np.right_shift(product, _HALF, out=scratch)
    np.bitwise_xor(word, scratch, out=word)
    np.bitwise_xor(word, np.uint64(key), out=word)
    np.bitwise_and(product, _LOW, out=product)


def _independent(key: int, unit: int, size: int, streams: Words, kind: DirectionKind) -> NDArray[np.float32]:
    """Draw a row for each stream, a pair of the counter's words 2 and 3."""
    step = WEIGHTS_PER_COUNTER[kind]
    rows, positions = streams.shape[1], -(-size // step)
    values = np.empty((rows * positions, step), dtype=np.float32)
    transform = _normals if kind == "normal" else _signs
    for start, words in _generate(key, unit, streams, positions):
        transform(words, values[start : start + words[0].size])
    return np.ascontiguousarray(values.reshape(rows, positions * step)[:, :size])


def _orthogonal(key: int, unit: int, size: int, iteration: int, numbers: Words) -> NDArray[np.float32]:
    blocks, rows = np.divmod(numbers, np.uint64(block(size)))
    drawn, which = np.unique(blocks, return_inverse=True)
    signs = _independent(key, unit, size, np.stack([np.full_like(drawn, iteration), drawn]), "rademacher")
    values = signs[which]
    values *= _hadamard(rows, size)
    return values


def _hadamard(rows: Words, size: int) -> NDArray[np.float32]:
    """``(-1) ** popcount(row & i)``: a bit of the row says whether the other half of a power of two is turned round."""
    values = np.ones((len(rows), size), dtype=np.float32)
    for bit in range((size - 1).bit_length()):
        half = 1 << bit
        turned = 1 - 2 * (rows >> np.uint64(bit) & np.uint64(1)).astype(np.float32)
        other = values[:, half : 2 * half]
        np.multiply(values[:, : other.shape[1]], turned[:, None], out=other)
    return values


def _generate(key: int, unit: int, streams: Words, positions: int) -> Iterator[tuple[int, list[Words]]]:
    """Yield the words of all positions of all streams, in chunks, each with the index of its first counter."""
    total = streams.shape[1] * positions
    for start in range(0, total, CHUNK):
        index = np.arange(start, min(start + CHUNK, total), dtype=np.uint64)
        row, position = np.divmod(index, np.uint64(positions))
        stream = streams[:, row.astype(np.intp)]
        yield start, philox((position, np.full_like(position, unit), stream[0], stream[1]), key)


def _normals(words: list[Words], out: NDArray[np.float32]) -> None:
    for pair in (0, 2):
        radius, angle = _uniform(words[pair]), _uniform(words[pair + 1])
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle *= 2.0 * np.pi
        out[:, pair] = radius * np.cos(angle)
        out[:, pair + 1] = radius * np.sin(angle)


def _uniform(words: Words) -> NDArray[np.float64]:
    uniform = words.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-32
    return uniform


def _signs(words: list[Words], out: NDArray[np.float32]) -> None:
    octets = np.stack(words, axis=1).astype("<u4").view(np.uint8)
    out[:] = np.unpackbits(octets, axis=1, bitorder="little")
    out *= 2.0
    out -= 1.0


def _examples(examples: int | Sequence[int], limit: int) -> Sequence[int]:
    if isinstance(examples, (int, np.integer)):
        return range(_within("examples", examples, limit, low=1))
    return [_within("examples", example, limit) for example in examples]


def _within(name: str, value: SupportsIndex, limit: int, low: int = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise DirectionError(f"{name} must be an integer, got {value!r}") from None
    if not low <= number < limit:
        raise DirectionError(f"{name} must be from {low} to {limit - 1}, got {number}")
    return number

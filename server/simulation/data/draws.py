"""Random numbers of a simulation: a function of the seed, and the same whatever the version of numpy.

numpy keeps the streams of its bit generators, but not what its distributions and shuffles make of them. So all numbers
come from the words of `edge_client.gradient.philox.philox`: key, the seed; counter, two indices, the purpose with a
number of its own, and a word that no direction and no batch order has. As with directions, two platforms may differ in
the last bit of a logarithm.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import DataError
from edge_client.gradient.philox import Words, philox

Floats = NDArray[np.float64]
Order = NDArray[np.int64]

_SIMULATION = 0xFFFFFFFE
_NUMBERS = 1 << 28


class Purpose(IntEnum):
    """The purposes that random numbers are drawn for."""

    CLIENTS = 0
    ROWS = 1
    MIXES = 2
    OFFSETS = 3
    SAMPLE = 4
    SPEEDS = 5
    TURNS = 6
    CHANCE = 7


def order(count: int, seed: int, purpose: Purpose, number: int = 0) -> Order:
    """Return the numbers below `count` in a random order."""
    high, low, *_ = _words(seed, purpose, 0, np.arange(count), number)
    return np.lexsort((low, high))


def uniform(count: int, seed: int, purpose: Purpose, number: int = 0) -> Floats:
    """Draw `count` numbers between 0 and 1."""
    return _uniform(_words(seed, purpose, 0, np.arange(count), number)[0])


def log_gammas(shapes: Floats, rows: NDArray[np.int64], seed: int) -> Floats:
    """Logarithms of gamma variates, [rows, shapes]: a row's softmax is a Dirichlet draw, for shapes near zero too.

    Marsaglia and Tsang's method for shape + 1, brought back to the shape by a power of a uniform number.
    """
    row, column = (index.ravel() for index in np.meshgrid(rows, np.arange(len(shapes)), indexing="ij"))
    shape = shapes[column]
    d = shape + 2 / 3
    result = np.empty(len(row))
    open_, attempt = np.arange(len(row)), 0
    while len(open_):
        words = _words(seed, Purpose.MIXES, row[open_], column[open_], attempt)
        x = np.sqrt(-2 * np.log(_uniform(words[0]))) * np.cos(2 * np.pi * _uniform(words[1]))
        cube = (1 + x / np.sqrt(9 * d[open_])) ** 3
        with np.errstate(invalid="ignore", divide="ignore"):
            bound = x * x / 2 + d[open_] * (1 - cube + np.log(cube))
            taken = (cube > 0) & (np.log(_uniform(words[2])) < bound)
        chosen = open_[taken]
        result[chosen] = np.log(d[chosen] * cube[taken]) + np.log(_uniform(words[3][taken])) / shape[chosen]
        open_, attempt = open_[~taken], attempt + 1
    return result.reshape(len(rows), len(shapes))


def _words(seed: int, purpose: Purpose, first: Any, second: Any, number: int = 0) -> list[Words]:
    if not 0 <= seed < 1 << 64:
        raise DataError(f"the seed must be from 0 to {(1 << 64) - 1}, got {seed}")
    fixed = purpose * _NUMBERS + number % _NUMBERS
    counter = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in (second, first, fixed, _SIMULATION)))
    with np.errstate(over="ignore"):
        return philox([word.copy() for word in counter], seed)


def _uniform(words: Words) -> Floats:
    return (words.astype(np.float64) + 0.5) * 2.0**-32

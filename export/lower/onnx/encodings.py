"""Round frozen weights: symmetric 8 bits with a scale per row, or 4 bits with a scale per block of 32.

Those of 4 bits lie around the middle of an unsigned type.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Floats

BLOCK = 32
_LARGEST_GROUP = 32
_HALF = 8
_ROWS = 4096
"""Rows worked on at a time: a large table is never copied whole in float32."""


def encode_rows(weight: Floats, *, turned: bool = False, largest: int = 127) -> tuple[NDArray[np.int8], Floats]:
    """Integers of at most `largest` [out, in], and a scale per row [out]; of the weight as it is, or turned."""
    numbers = np.empty(weight.shape, np.int8)
    scales = np.empty(weight.shape[0], np.float32)
    for start in range(0, len(weight), _ROWS):
        rows = weight[start : start + _ROWS]
        rows = turn(rows) if turned else rows
        scale = np.maximum(np.abs(rows).max(1), np.float32(1e-12)) / np.float32(largest)
        scales[start : start + _ROWS] = scale
        numbers[start : start + _ROWS] = np.clip(np.rint(rows / scale[:, None]), -largest, largest)
    return numbers, scales


def decode_rows(numbers: NDArray[np.int8], scales: Floats, *, turned: bool = False) -> Floats:
    decoded = np.empty(numbers.shape, np.float32)
    for start in range(0, len(numbers), _ROWS):
        some = slice(start, start + _ROWS)
        rows = numbers[some].astype(np.float32) * scales[some, None]
        decoded[some] = turn(rows) if turned else rows
    return decoded


def encode_blocks(weight: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Encode two numbers of 0…15 to a byte [out, blocks, 16], with a scale per block [out, blocks]; 8 stands for zero.

    The scale is signed so that a block's largest weight is exact. Rows are padded to whole blocks.
    """
    out, columns = weight.shape
    blocks = -(-columns // BLOCK)
    packed = np.empty((out, blocks, BLOCK // 2), np.uint8)
    scales = np.empty((out, blocks), np.float32)
    for start in range(0, out, _ROWS):
        rows = weight[start : start + _ROWS]
        padded = np.zeros((len(rows), blocks * BLOCK), np.float32)
        padded[:, :columns] = rows
        padded = padded.reshape(len(rows), blocks, BLOCK)
        largest = np.take_along_axis(padded, np.abs(padded).argmax(-1)[..., None], -1)
        scale = np.where(largest == 0, np.float32(1), largest / np.float32(-_HALF))
        numbers = np.clip(np.rint(padded / scale) + _HALF, 0, 2 * _HALF - 1).astype(np.uint8)
        packed[start : start + _ROWS] = numbers[..., 0::2] | (numbers[..., 1::2] << 4)
        scales[start : start + _ROWS] = scale[..., 0]
    return packed, scales


def decode_blocks(packed: NDArray[np.uint8], scales: Floats, columns: int) -> Floats:
    decoded = np.empty((len(scales), columns), np.float32)
    for start in range(0, len(scales), _ROWS):
        some = slice(start, start + _ROWS)
        numbers = np.stack([packed[some] & 15, packed[some] >> 4], -1).reshape(*scales[some].shape, BLOCK)
        values = (numbers.astype(np.float32) - np.float32(_HALF)) * scales[some, :, None]
        decoded[some] = values.reshape(len(values), -1)[:, :columns]
    return decoded


def group_of(columns: int) -> int:
    """Return how many channels are turned together: whole groups, of a power of two."""
    return min(columns & -columns, _LARGEST_GROUP)


@cache
def hadamard(group: int) -> Floats:
    """Orthogonal and symmetric, so it also turns back."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < group:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / math.sqrt(group), np.float32)


def turn(rows: Floats) -> Floats:
    """Multiply each row by the matrix above, group by group."""
    group = group_of(rows.shape[1])
    return (rows.reshape(-1, group) @ hadamard(group)).reshape(rows.shape)

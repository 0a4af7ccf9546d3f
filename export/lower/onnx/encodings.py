"""How a frozen weight is rounded: symmetric 8 bits with a scale per row, or 4 bits with a scale per block of 32.

Numbers lie around the middle of an unsigned type. Processors without dot products of bytes (x86 before VNNI) add two
products of an unsigned and a signed byte in 16 bits, which overflow; of two unsigned ones they do not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Floats

BLOCK = 32
MIDDLE = 128
"""Stands for zero in a byte."""
_HALF = 8
_ROWS = 4096
"""Rows worked on at a time: a large table is never copied whole in float32."""


def encode_rows(weight: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Integers in 128 ± 127 [out, in], and a scale per row [out]."""
    numbers = np.empty(weight.shape, np.uint8)
    scales = np.empty(weight.shape[0], np.float32)
    for start in range(0, len(weight), _ROWS):
        rows = weight[start : start + _ROWS]
        scale = np.maximum(np.abs(rows).max(1), np.float32(1e-12)) / np.float32(127)
        scales[start : start + _ROWS] = scale
        numbers[start : start + _ROWS] = np.clip(np.rint(rows / scale[:, None]), -127, 127) + MIDDLE
    return numbers, scales


def decode_rows(numbers: NDArray[np.uint8], scales: Floats) -> Floats:
    return (numbers.astype(np.float32) - np.float32(MIDDLE)) * scales[:, None]


def encode_blocks(weight: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Two numbers of 0…15 to a byte [out, blocks, 16], and a scale per block [out, blocks]; 8 stands for zero.

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
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(*scales.shape, BLOCK)
    values = (numbers.astype(np.float32) - np.float32(_HALF)) * scales[..., None]
    return values.reshape(len(scales), -1)[:, :columns]

"""Store and multiply frozen weights: the numbers that XNNPACK's kernels compute with.

int8: one scale per row of the weight, codes from -127 to 127. int4: one scale per 32 columns, codes from -8 to 7; a
scale is 1 to 127 times a power of two that its row shares, which is exact in the bfloat16 that XNNPACK stores and one
byte more for the exact gradient, which needs the scales in a form that it can multiply with. Activations are quantized
at run time, one scale per token. Embeddings hold one byte per number and one scale per row in both. Layers with fewer
than 32 rows or columns stay in float32, and an int4 weight is int8 where its rows do not divide into groups of 32 or
its file has 8 bits for it, as often for a vocabulary.

A few channels of a transformer's hidden state are ten times larger than the rest, and a token's one scale has to reach
them. So the input of a product is turned first, by a small orthogonal matrix within groups of its channels, and the
weight with it: large numbers spread over their group, and x R (W R)' is x W'. Where a layer has far more inputs than
outputs, turning them would cost more than it gains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from export.lower.target import Precision
from export.model.kept import no_coarser

_SMALLEST = 32
GROUP = 32
_TURNED = 32
"""Channels that are turned together."""
_MOST_INPUTS_PER_OUTPUT = 2
_ROWS_AT_ONCE = 4096
"""Quantizing needs a few times the memory of what it works on."""
_MOST_UNITS = 127
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)


@dataclass(frozen=True)
class Quantized:
    """Codes [out, in] and their scales [out, groups]."""

    codes: Tensor
    scales: Tensor
    lowest: int
    highest: int
    rotation: Tensor | None = None
    """The rotation of the input; the codes are those of the turned weight."""

    def of_rows(self, rows: slice) -> Quantized:
        """Return some rows, copied."""
        return replace(self, codes=self.codes[rows].clone(), scales=self.scales[rows].clone())

    @property
    def unit(self) -> Tensor:
        """The power of two [out, 1] that the scales of an int4 row are multiples of."""
        return _unit(self.scales)

    @property
    def float32(self) -> Tensor:
        rows, columns = self.codes.shape
        apart = self.codes.reshape(rows, self.scales.shape[1], -1).to(torch.float32)
        turned = (apart * self.scales.unsqueeze(-1)).reshape(rows, columns)
        return turned if self.rotation is None else _turn(turned, self.rotation)

    @property
    def nibbles(self) -> Tensor:
        """The codes, two a byte as XNNPACK stores them, the even column in the low half; read as int8."""
        unsigned = (self.codes + 8).to(torch.uint8)
        return (unsigned[:, 1::2] * 16 + unsigned[:, ::2]).view(torch.int8)


def effective(weight: Tensor, precision: Precision) -> Precision:
    """Return the precision in which a linear's weight [out, in] is stored."""
    rows, columns = weight.shape
    if precision == "none" or min(rows, columns) < _SMALLEST:
        return "none"
    return "int8" if precision == "int4" and columns % GROUP else no_coarser(weight, precision)


def quantize(weight: Tensor, precision: Precision) -> Quantized:
    rotation = _rotation(*weight.shape)
    parts = [_quantized_rows(rows, precision, rotation) for rows in weight.detach().split(_ROWS_AT_ONCE)]
    codes, scales = (torch.cat(column) for column in zip(*parts, strict=True))
    return Quantized(codes, scales, *((-127, 127) if precision == "int8" else (-8, 7)), rotation)


def _quantized_rows(rows: Tensor, precision: Precision, rotation: Tensor | None) -> tuple[Tensor, Tensor]:
    turned = rows.to(torch.float32)
    if rotation is not None:
        turned = _turn(turned, rotation)
    return _bytes(turned) if precision == "int8" else _nibbles(turned)


def _bytes(rows: Tensor) -> tuple[Tensor, Tensor]:
    scales = _not_zero(rows.abs().amax(1, keepdim=True) / 127)
    return (rows / scales).round_().clamp_(-127, 127).to(torch.int8), scales


def _nibbles(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Per group the scale with the smallest squared error, among the one that reaches the largest number and less."""
    groups = rows.reshape(rows.shape[0], -1, GROUP)
    largest = groups.abs().amax(-1) / 7.5
    unit = _unit(largest)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for shrink in _SHRINKS:
        scales = (largest * shrink / unit).round_().clamp_(1, _MOST_UNITS) * unit
        codes = (groups / scales.unsqueeze(-1)).round_().clamp_(-8, 7)
        error = (codes * scales.unsqueeze(-1) - groups).square_().sum(-1)
        if best is None:
            best = codes, scales, error
            continue
        better = error < best[2]
        best = (
            torch.where(better.unsqueeze(-1), codes, best[0]),
            torch.where(better, scales, best[1]),
            torch.where(better, error, best[2]),
        )
    assert best is not None
    return best[0].to(torch.int8).reshape(rows.shape), best[1]


def _unit(scales: Tensor) -> Tensor:
    """Return the smallest power of two of which the largest scale of each row is no more than 127."""
    return torch.exp2(torch.ceil(torch.log2(_not_zero(scales.amax(1, keepdim=True)) / _MOST_UNITS)))


def _rotation(rows: int, columns: int) -> Tensor | None:
    """Build a Hadamard matrix: orthogonal and symmetric, so it also turns back."""
    if columns % _TURNED or columns > _MOST_INPUTS_PER_OUTPUT * rows:
        return None
    matrix = torch.ones(1, 1)
    while len(matrix) < _TURNED:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(_TURNED)


def _turn(rows: Tensor, rotation: Tensor) -> Tensor:
    return (rows.reshape(rows.shape[0], -1, len(rotation)) @ rotation).reshape(rows.shape)


def quantize_table(table: Tensor, precision: Precision) -> Quantized | None:
    """Quantize an embedding [rows, width]; None where it stays in float32."""
    if effective(table, precision) == "none":
        return None
    parts = [_bytes(rows.to(torch.float32)) for rows in table.detach().split(_ROWS_AT_ONCE)]
    codes, scales = (torch.cat(column) for column in zip(*parts, strict=True))
    return Quantized(codes, scales, -127, 127)


def _not_zero(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, torch.ones_like(scales), scales)

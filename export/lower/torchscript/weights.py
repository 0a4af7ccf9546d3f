"""Store and multiply frozen weights: weight-only, dequantized in the graph right before the product.

int8: one scale per row. int4: one float16 scale per 32 columns, two codes a byte. Embeddings hold one byte per number
and one scale per row in both. Layers with fewer than 32 rows or columns stay in float32, and an int4 weight is int8
where its rows do not divide into groups of 32 or its file has 8 bits for it.

torch's own int8 product (`aten._weight_int8pack_mm`) takes 20 to 40 times as long as this on a CPU without bfloat16
kernels; dequantizing costs a few percent of a batch's product, and nothing but one layer's weight in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

from export.lower.target import Precision
from export.model.kept import no_coarser

_SMALLEST = 32
GROUP = 32
"""Columns of an int4 weight that share a scale."""


class Weight(Protocol):
    """A frozen weight [out, in] in its stored form, and what `export.graph.ops` does with it."""

    def tensors(self) -> list[Tensor]:
        """List the stored tensors."""
        ...

    def product(self, x: Tensor) -> Tensor:
        """Compute x @ weight.T (`spry.linear`)."""
        ...

    def transposed_product(self, gradient: Tensor) -> Tensor:
        """Compute gradient @ weight (`spry.linear_t`)."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """Compute weight[ids] (`spry.embedding`)."""
        ...

    def float32(self) -> Tensor: ...


@dataclass(frozen=True)
class FloatWeight:
    weight: Tensor

    def tensors(self) -> list[Tensor]:
        return [self.weight]

    def product(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)

    def transposed_product(self, gradient: Tensor) -> Tensor:
        return torch.matmul(gradient, self.weight)

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)

    def float32(self) -> Tensor:
        return self.weight


@dataclass(frozen=True)
class Int8:
    """Codes [out, in] and scales [out, 1]."""

    codes: Tensor
    scales: Tensor

    def tensors(self) -> list[Tensor]:
        return [self.codes, self.scales]

    def product(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.codes.to(x.dtype)).mul_(self.scales.squeeze(1))

    def transposed_product(self, gradient: Tensor) -> Tensor:
        return torch.matmul(gradient * self.scales.squeeze(1), self.codes.to(gradient.dtype))

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.codes).to(self.scales.dtype) * functional.embedding(ids, self.scales)

    def float32(self) -> Tensor:
        return self.codes * self.scales


@dataclass(frozen=True)
class Int4:
    """Codes [out, in / 2], the left half of a row in the low nibbles, and scales [out, in / 32]."""

    pairs: Tensor
    scales: Tensor

    def tensors(self) -> list[Tensor]:
        return [self.pairs, self.scales]

    def product(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.dequantized(x.dtype))

    def transposed_product(self, gradient: Tensor) -> Tensor:
        return torch.matmul(gradient, self.dequantized(gradient.dtype))

    def rows(self, ids: Tensor) -> Tensor:
        raise NotImplementedError("tables are int8")

    def float32(self) -> Tensor:
        return self.dequantized(torch.float32)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        codes = torch.cat([(self.pairs << 4) >> 4, self.pairs >> 4], 1)  # shifts of int8 keep the sign
        grouped = codes.unflatten(1, (-1, GROUP)) * self.scales.to(dtype).unsqueeze(-1)
        return grouped.flatten(1)


def quantized_linear(weight: Tensor, precision: Precision) -> Weight:
    return _FORMS[_effective(weight, precision)](weight.detach())


def quantized_table(table: Tensor, precision: Precision) -> Weight:
    return FloatWeight(table) if _effective(table, precision) == "none" else _int8(table.detach())


def _effective(weight: Tensor, precision: Precision) -> Precision:
    rows, columns = weight.shape
    if precision == "none" or min(rows, columns) < _SMALLEST:
        return "none"
    return "int8" if precision == "int4" and columns % GROUP else no_coarser(weight, precision)


def _int8(weight: Tensor) -> Int8:
    codes, scales = _symmetric(weight, weight.shape[1], -127, 127, torch.float32)
    return Int8(codes, scales)


def _int4(weight: Tensor) -> Int4:
    codes, scales = _symmetric(weight, GROUP, -8, 7, torch.float16)
    left, right = codes.chunk(2, 1)
    return Int4((right << 4) | (left & 15), scales)


_FORMS: dict[Precision, Callable[[Tensor], Weight]] = {"none": FloatWeight, "int8": _int8, "int4": _int4}


def _symmetric(weight: Tensor, group: int, lowest: int, highest: int, scale_type: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes [out, in] and scales [out, in / group], the codes chosen for the scales as they are stored."""
    block: Any = (1, group)
    scales, zeros = choose_qparams_affine(
        weight,
        MappingType.SYMMETRIC,
        block,
        torch.int8,
        lowest,
        highest,
        eps=torch.finfo(scale_type).smallest_normal,
        scale_dtype=torch.float32,
    )
    stored = scales.to(scale_type)
    codes = quantize_affine(weight, block, stored.to(torch.float32), zeros, torch.int8, lowest, highest)
    return codes, stored.reshape(weight.shape[0], -1)

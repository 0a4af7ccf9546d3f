"""Sums, and what is made of them, as products with a stored row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from export.graph import ops
from export.lower.executorch.formulation import Mask, dims_of, formulation

aten = torch.ops.aten


def _reduce(x: Tensor, dims: Sequence[int], keepdim: bool, factor: float) -> Tensor:
    """`factor` times the sum over `dims`, as a product with one stored row."""
    reduced = sorted(dim % x.dim() for dim in dims)
    kept = [dim for dim in range(x.dim()) if dim not in reduced]
    count = math.prod(x.shape[dim] for dim in reduced)
    ordered = x if [*kept, *reduced] == list(range(x.dim())) else x.permute([*kept, *reduced])
    row = torch.full((1, count), factor)
    total = ops.linear(ordered.reshape(*[x.shape[dim] for dim in kept], count), row)
    shape = [1 if dim in reduced else x.shape[dim] for dim in range(x.dim())] if keepdim else [x.shape[d] for d in kept]
    return total.reshape(shape)


@formulation(aten.sum.dim_IntList)
def _sum(x: Any, dims: Any, keepdim: bool = False, **keywords: Any) -> Tensor:
    if isinstance(x, Mask):
        x = x.ones
    if x.dtype != torch.float32 or x.dim() == 0:
        return aten.sum.dim_IntList(x, dims, keepdim, **keywords)
    return _reduce(x, dims_of(x, dims), keepdim, 1.0)


@formulation(aten.mean.dim)
def _mean(x: Tensor, dims: Any, keepdim: bool = False) -> Tensor:
    listed = dims_of(x, dims)
    return _reduce(x, listed, keepdim, 1 / math.prod(x.shape[dim] for dim in listed))


@formulation(aten.amax.default)
def _amax(x: Tensor, dims: Any, keepdim: bool = False) -> Tensor:
    """Read the value at the position of the largest: only the kernel that finds places has vector instructions."""
    dim = dims_of(x, dims)[0]
    if len(dims_of(x, dims)) > 1 or x.dim() == 0:
        return aten.amax.default(x, dims, keepdim)
    largest = x.gather(dim, x.argmax(dim, keepdim=True))
    return largest if keepdim else largest.squeeze(dim)


@formulation(aten.native_layer_norm.default)
def _native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = list(range(-len(shape), 0))
    mean = _mean(x, axes, True)
    centred = x - mean
    scale = torch.rsqrt(_mean(centred * centred, axes, True) + eps)
    result = centred * scale
    if weight is not None:
        result = result * weight
    return (result if bias is None else result + bias), mean, scale


@formulation(aten.layer_norm.default)
def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    *rest: Any,
) -> Tensor:  # fmt: skip
    return _native_layer_norm(x, shape, weight, bias, eps)[0]


@formulation(aten.softmax.int, aten._softmax.default)
def _softmax(x: Tensor, dim: int, *rest: Any) -> Tensor:
    if dim % x.dim() == x.dim() - 1:
        return torch.softmax(x, -1)
    return torch.softmax(x.transpose(dim, -1), -1).transpose(dim, -1)

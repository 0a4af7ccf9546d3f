"""Reshape, slice and join tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from export.lower.executorch.formulation import Fill, dims_of, formulation, plain, same_kind

aten = torch.ops.aten

_MOST_JOINED = 5
"""The most tensors that XNNPACK concatenates at once."""


@formulation(aten.expand.default)
def expand(x: Any, shape: Sequence[int], **keywords: Any) -> Any:
    return same_kind(x, lambda tensor: _spread(tensor, shape))


def _spread(x: Tensor, shape: Sequence[int]) -> Tensor:
    padded = [1] * (len(shape) - x.dim()) + list(x.shape)
    target = [old if new == -1 else new for old, new in zip(padded, shape, strict=True)]
    source = x if padded == list(x.shape) else x.reshape(padded)
    if target == padded:
        return source
    if x.dtype != torch.float32:
        return source.expand(target)
    return source * torch.ones([1 if new == old else new for old, new in zip(padded, target, strict=True)])


@formulation(aten.unsqueeze.default)
def _unsqueeze(x: Any, dim: int) -> Any:
    def change(tensor: Tensor) -> Tensor:
        at = dim % (tensor.dim() + 1)
        return tensor.reshape(*tensor.shape[:at], 1, *tensor.shape[at:])

    return same_kind(x, change)


@formulation(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _squeeze(x: Any, dims: Any = None) -> Any:
    def change(tensor: Tensor) -> Tensor:
        gone = {dim % tensor.dim() for dim in dims_of(tensor, dims)} if tensor.dim() else set[int]()
        return tensor.reshape([size for dim, size in enumerate(tensor.shape) if size != 1 or dim not in gone])

    return same_kind(x, change)


@formulation(aten.view.default, aten.reshape.default)
def _view(x: Any, shape: Sequence[int]) -> Any:
    return same_kind(x, lambda tensor: tensor.reshape(list(shape)))


@formulation(aten.slice.Tensor)
def _slice(x: Any, *rest: Any) -> Any:
    return same_kind(x, lambda tensor: aten.slice.Tensor(tensor, *rest))


@formulation(aten.select.int)
def _select(x: Any, dim: int, index: int) -> Any:
    def change(tensor: Tensor) -> Tensor:
        at, axis = index % tensor.shape[dim], dim % tensor.dim()
        part = aten.slice.Tensor(tensor, axis, at, at + 1)
        return part.reshape([size for i, size in enumerate(tensor.shape) if i != axis])

    return same_kind(x, change)


@formulation(aten.index.Tensor)
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return same_kind(x, lambda tensor: aten.index.Tensor(tensor, [None if i is None else plain(i) for i in indices]))


@formulation(aten.split.Tensor, aten.split_with_sizes.default)
def _split(x: Tensor, sizes: Any, dim: int = 0) -> list[Tensor]:
    length = x.shape[dim]
    listed = list(sizes) if not isinstance(sizes, int) else [min(sizes, length - i) for i in range(0, length, sizes)]
    starts = [sum(listed[:i]) for i in range(len(listed))]
    return [aten.slice.Tensor(x, dim, start, start + size) for start, size in zip(starts, listed, strict=True)]


@formulation(aten.cat.default)
def _cat(parts: Sequence[Any], dim: int = 0) -> Tensor:
    tensors = [plain(part) for part in parts]
    if len(tensors) > 1 and all(tensor is tensors[0] for tensor in tensors):
        return _repeat(tensors[0], len(tensors), dim)
    while len(tensors) > _MOST_JOINED:
        tensors = [torch.cat(tensors[i : i + _MOST_JOINED], dim) for i in range(0, len(tensors), _MOST_JOINED)]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


def _repeat(x: Tensor, count: int, dim: int) -> Tensor:
    """Join a tensor with itself by a product with ones: XNNPACK takes it for one tensor too few to join."""
    if x.dtype != torch.float32:
        return torch.cat([x] * count, dim)
    axis = dim % x.dim()
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    spread = x.reshape(before, 1, after) * torch.ones(1, count, 1)
    return spread.reshape(*x.shape[:axis], count * x.shape[axis], *x.shape[axis + 1 :])


@formulation(aten.stack.default)
def _stack(parts: Sequence[Any], dim: int = 0) -> Tensor:
    return _cat([_unsqueeze(plain(part), dim) for part in parts], dim)


@formulation(aten.slice_scatter.default)
def _slice_scatter(x: Any, part: Tensor, dim: int = 0, start: int | None = None, end: int | None = None) -> Tensor:
    """Put a slice between what lies before and after it."""
    size = plain(x).shape[dim]
    first = min(max((start or 0) + size * ((start or 0) < 0), 0), size)
    last = first + part.shape[dim]
    if isinstance(x, Fill) and x.number == 0:
        padding = [0, 0] * (part.dim() - 1 - dim % part.dim()) + [first, size - last]
        return aten.constant_pad_nd.default(part, padding, 0.0)
    whole = plain(x)
    sides = [aten.slice.Tensor(whole, dim, 0, first), part, aten.slice.Tensor(whole, dim, last, size)]
    return _cat([side for side in sides if side.shape[dim]], dim)

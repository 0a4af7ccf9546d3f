"""Ops that move or select elements: the tangent moves with the value.

They may not touch dimension 0 of a batched value, where the examples lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from export.dual.rule import Directions, Dual, tangent, tangent_of, value

aten = torch.ops.aten


def _axis(x: Dual, dim: int) -> int:
    """`dim` of the value as a negative axis, which means the same in the tangent."""
    axis = dim if dim < 0 else dim - x.value.dim()
    if x.batched and axis == -x.value.dim():
        raise NotImplementedError(f"an op along the batch dimension of a value of shape {tuple(x.value.shape)}")
    return axis


@tangent_of(
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.default,
)
def _reshape(directions: Directions, result: Tensor, x: Dual, *rest: Any) -> Tensor:
    assert x.tangent is not None
    if x.batched and (result.dim() == 0 or result.shape[0] % directions.batch):
        raise NotImplementedError(f"the batch dimension moved: {tuple(x.value.shape)} to {tuple(result.shape)}")
    return x.tangent.reshape(directions.shape(result, batched=x.batched))


@tangent_of(aten.expand.default)
def _expand(directions: Directions, result: Tensor, x: Dual, *rest: Any, **keywords: Any) -> Tensor:
    assert x.tangent is not None
    added = result.dim() - x.value.dim()
    if x.batched and added:
        raise NotImplementedError("new dimensions in front of the batch dimension")
    tangent = x.tangent.reshape(len(x.tangent), *[1] * added, *x.value.shape) if added else x.tangent
    return tangent.expand(directions.shape(result, batched=x.batched))


@tangent_of(aten.transpose.int)
def _transpose(directions: Directions, result: Tensor, x: Dual, first: int, second: int) -> Tensor:
    assert x.tangent is not None
    return x.tangent.transpose(_axis(x, first), _axis(x, second))


@tangent_of(aten.t.default)
def _t(directions: Directions, result: Tensor, x: Dual) -> Tensor:
    assert x.tangent is not None
    return x.tangent if x.value.dim() < 2 else x.tangent.transpose(_axis(x, 0), _axis(x, 1))


@tangent_of(aten.permute.default)
def _permute(directions: Directions, result: Tensor, x: Dual, dims: Sequence[int]) -> Tensor:
    assert x.tangent is not None
    order = [d % x.value.dim() for d in dims]
    if x.batched:
        if order[0] != 0:
            raise NotImplementedError(f"permute{order} moves the batch dimension")
        return x.tangent.permute(order)
    return x.tangent.permute([0, *(d + 1 for d in order)])


@tangent_of(aten.slice.Tensor)
def _slice(
    directions: Directions, result: Tensor, x: Dual, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    assert x.tangent is not None
    if result.shape == x.value.shape and step == 1:
        return x.tangent  # x[:, …] slices the whole batch
    return aten.slice.Tensor(x.tangent, _axis(x, dim), start, end, step)


@tangent_of(aten.select.int)
def _select(directions: Directions, result: Tensor, x: Dual, dim: int, index: int) -> Tensor:
    assert x.tangent is not None
    return aten.select.int(x.tangent, _axis(x, dim), index)


@tangent_of(aten.split.Tensor, aten.split_with_sizes.default)
def _split(directions: Directions, result: Any, x: Dual, sizes: Any, dim: int = 0) -> Any:
    assert x.tangent is not None
    return x.tangent.split([part.shape[dim] for part in result], _axis(x, dim))


def _joined(directions: Directions, parts: Sequence[Dual]) -> list[Tensor]:
    batched = any(part.batched for part in parts)
    if batched and not all(part.batched for part in parts):
        raise NotImplementedError("joining values of the batch with values that are not")
    return [
        value(part).new_zeros(directions.shape(part.value, batched=batched)) if part.tangent is None else part.tangent
        for part in parts
    ]


@tangent_of(aten.cat.default)
def _cat(directions: Directions, result: Tensor, parts: Sequence[Dual], dim: int = 0) -> Tensor:
    return torch.cat(_joined(directions, parts), _axis(parts[0], dim))


@tangent_of(aten.stack.default)
def _stack(directions: Directions, result: Tensor, parts: Sequence[Dual], dim: int = 0) -> Tensor:
    axis = dim if dim < 0 else dim - result.dim()
    if parts[0].batched and axis == -result.dim():
        raise NotImplementedError("stacking along the batch dimension")
    assert any(tangent(part) is not None for part in parts)
    return torch.stack(_joined(directions, parts), axis)

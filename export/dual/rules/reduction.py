"""Sums, means and softmax along dimensions other than the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from export.dual.rule import Directions, Dual, SharesDual, tangent_of

aten = torch.ops.aten


def _axes(x: Dual, dims: Sequence[int] | int | None) -> list[int]:
    listed = [dims] if isinstance(dims, int) else list(dims or range(x.value.dim()))
    axes = [d if d < 0 else d - x.value.dim() for d in listed]
    if x.batched and -x.value.dim() in axes:
        raise NotImplementedError("a reduction over the batch")
    return axes


@tangent_of(aten.sum.dim_IntList)
def _sum(directions: Directions, result: Tensor, x: Dual, dims: Any, keepdim: bool = False, **keywords: Any) -> Tensor:
    assert x.tangent is not None
    return x.tangent.sum(_axes(x, dims), keepdim, **keywords)


@tangent_of(aten.mean.dim)
def _mean(directions: Directions, result: Tensor, x: Dual, dims: Any, keepdim: bool = False, **keywords: Any) -> Tensor:
    assert x.tangent is not None
    return x.tangent.mean(_axes(x, dims), keepdim, **keywords)


@tangent_of(aten.softmax.int, aten._softmax.default)
def _softmax(directions: Directions, result: Tensor, x: Dual, dim: int, *rest: Any) -> SharesDual | Tensor:
    assert x.tangent is not None
    (axis,) = _axes(x, dim)
    shares = directions.shared(result, batched=x.batched)
    weighted = directions.apart(x.tangent, batched=x.batched) * shares
    sums = weighted.sum(axis, keepdim=True)
    slope = directions.together(weighted - sums * shares, batched=x.batched)
    if axis != -1 or not x.batched or slope.dtype != result.dtype:
        return slope
    return SharesDual(result, slope, x.batched, weighted, sums)


@tangent_of(aten.log_softmax.int, aten._log_softmax.default)
def _log_softmax(directions: Directions, result: Tensor, x: Dual, dim: int, *rest: Any) -> Tensor:
    assert x.tangent is not None
    (axis,) = _axes(x, dim)
    weighted = directions.scale(x.tangent, torch.exp(result), batched=x.batched)
    return x.tangent - weighted.sum(axis, keepdim=True)

"""Booleans as 0.0 and 1.0, and choices as arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from export.lower.executorch.formulation import TINY, Fill, Mask, formulation, mask_of, plain
from export.lower.executorch.formulations.elementwise import rsub

aten = torch.ops.aten


def _positive(x: Tensor) -> Mask:
    """Mask floats above 0, without a comparison; a number up to about 1e-30 counts as somewhat positive."""
    return Mask(torch.relu(x) / (torch.abs(x) + TINY))


@formulation(aten.gt.Scalar)
def _gt(x: Any, limit: float) -> Mask:
    if isinstance(x, Tensor) and x.dtype == torch.float32:
        return _positive(x if limit == 0 else x - limit)
    return mask_of(aten.gt.Scalar(plain(x), limit))


@formulation(aten.le.Scalar)
def _le(x: Any, limit: float) -> Mask:
    return _not(_gt(x, limit))


@formulation(aten.logical_not.default, aten.bitwise_not.default)
def _not(x: Any) -> Any:
    if isinstance(x, Tensor) and x.dtype != torch.bool:
        return aten.bitwise_not.default(x)
    return Mask(rsub(mask_of(x).ones, 1.0))


@formulation(aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default)
def _and(x: Any, y: Any) -> Mask:
    return Mask(mask_of(x).ones * mask_of(y).ones)


@formulation(aten.__or__.Tensor, aten.bitwise_or.Tensor, aten.logical_or.default)
def _or(x: Any, y: Any) -> Mask:
    return Mask(torch.maximum(mask_of(x).ones, mask_of(y).ones))


@formulation(aten.to.dtype, aten.to.device, aten._to_copy.default)
def _to(x: Any, *rest: Any, **keywords: Any) -> Any:
    dtype = keywords.get("dtype") or next((part for part in rest if isinstance(part, torch.dtype)), None)
    if dtype == torch.bool and not isinstance(x, Mask):
        return mask_of(plain(x).to(torch.bool))
    if isinstance(x, Mask) and dtype in (torch.bool, torch.float32):
        return x if dtype == torch.bool else x.ones
    return plain(x).to(dtype or plain(x).dtype)


@formulation(aten.full.default)
def _full(shape: Sequence[int], number: float, **keywords: Any) -> Fill:
    return Fill(number, tuple(shape), keywords.get("dtype") or torch.get_default_dtype())


@formulation(aten.scalar_tensor.default)
def _scalar_tensor(number: float, **keywords: Any) -> Fill:
    return _full((), number, **keywords)


@formulation(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(condition: Any, x: Any, y: Any) -> Any:
    """Arithmetic instead of a choice: both sides are finite numbers."""
    if any(isinstance(side, Mask) or (isinstance(side, Tensor) and side.dtype != torch.float32) for side in (x, y)):
        return aten.where.self(plain(condition), plain(x), plain(y))
    keep = mask_of(condition).ones
    left, right = _finite(x), _finite(y)
    if isinstance(left, float) and isinstance(right, float):
        return keep * (left - right) + right if right else keep * left
    other = rsub(keep, 1.0)
    terms = [side * factor for side, factor in ((left, keep), (right, other)) if not isinstance(side, float) or side]
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _finite(side: Any) -> Any:
    if isinstance(side, Tensor):
        return side
    limit = torch.finfo(torch.float32).max
    return min(max(float(side.number if isinstance(side, Fill) else side), -limit), limit)


@formulation(aten.masked_fill.Scalar)
def _masked_fill(x: Tensor, mask: Any, number: float) -> Any:
    return _where(mask, number, x)

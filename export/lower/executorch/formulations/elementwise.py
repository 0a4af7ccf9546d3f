"""Ops that take each number by itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from export.lower.executorch.formulation import Fill, formulation, plain

aten = torch.ops.aten


@formulation(aten.gelu.default)
def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """XNNPACK's own tanh form is off by 1e-4."""
    if approximate == "none":
        return aten.gelu.default(x)
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@formulation(aten.silu.default)
def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@formulation(aten.pow.Tensor_Scalar)
def _pow(x: Tensor, exponent: float) -> Tensor:
    if exponent == int(exponent) and 1 <= exponent <= 4:
        return math.prod([x] * (int(exponent) - 1), start=x)
    known = {0.5: torch.sqrt, -0.5: torch.rsqrt}.get(exponent)
    return known(x) if known else aten.pow.Tensor_Scalar(x, exponent)


@formulation(aten.rsub.Scalar)
def rsub(x: Tensor, other: float, alpha: float = 1) -> Tensor:
    return torch.full((1,) * x.dim(), other, dtype=x.dtype) - (x if alpha == 1 else x * alpha)


@formulation(aten.reciprocal.default)
def _reciprocal(x: Tensor) -> Tensor:
    return torch.ones((1,) * x.dim()) / x


@formulation(aten.mul.Tensor, aten.mul.Scalar)
def _mul(x: Any, y: Any) -> Tensor:
    if isinstance(y, int | float) and y == 1:
        return plain(x)
    return plain(x) * plain(y)


@formulation(aten.div.Tensor, aten.div.Scalar)
def _div(x: Any, y: Any) -> Tensor:
    return plain(x) / plain(y) if isinstance(y, Tensor | Fill) else plain(x) * (1 / y)

"""Ops that act on each element, and the four arithmetic ones with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from export.dual.rule import Directions, Dual, pair_of, tangent, tangent_of, total

aten = torch.ops.aten


def elementwise(*targets: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register `derivative(x, result, *rest)` of ops of one tensor."""

    def register(derivative: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @tangent_of(*targets)
        def rule(directions: Directions, result: Tensor, x: Dual, *rest: Any, **keywords: Any) -> Tensor:
            assert x.tangent is not None
            return directions.scale(x.tangent, derivative(x.value, result, *rest, **keywords), batched=x.batched)

        del rule
        return derivative

    return register


@elementwise(aten.tanh.default)
def _tanh(x: Tensor, y: Tensor) -> Tensor:
    return 1 - y * y


@elementwise(aten.sigmoid.default)
def _sigmoid(x: Tensor, y: Tensor) -> Tensor:
    return y * (1 - y)


@elementwise(aten.relu.default)
def _relu(x: Tensor, y: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


@elementwise(aten.silu.default)
def _silu(x: Tensor, y: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s + y * (1 - s)


_NORMAL = -math.log(2 * math.pi) / 2
"""The logarithm of the normal density at zero."""


@pair_of(aten.gelu.default)
def _gelu(directions: Directions, x: Dual, *, approximate: str = "none") -> tuple[Tensor, Tensor]:
    """Compute gelu by the parts of its slope, which costs as much as the operator itself."""
    assert x.tangent is not None
    share, growth = _tanh_parts(x.value) if approximate == "tanh" else _normal_parts(x.value)
    slope = share + x.value * growth
    return x.value * share, directions.scale(x.tangent, slope, batched=x.batched)


def _normal_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the share of x that gelu lets through, and the derivative of that."""
    part = x * math.sqrt(0.5)
    share = torch.erf(part) * 0.5 + 0.5
    return share, torch.exp(_NORMAL - part * part)


def _tanh_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + t), 0.5 * (1 - t * t) * inner


@elementwise(aten.exp.default)
def _exp(x: Tensor, y: Tensor) -> Tensor:
    return y


@elementwise(aten.rsqrt.default)
def _rsqrt(x: Tensor, y: Tensor) -> Tensor:
    return y * y * y * -0.5


@elementwise(aten.sqrt.default)
def _sqrt(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 / y


@elementwise(aten.pow.Tensor_Scalar)
def _pow(x: Tensor, y: Tensor, exponent: float) -> Tensor:
    return x * 2 if exponent == 2 else torch.pow(x, exponent - 1) * exponent


@elementwise(aten.cos.default)
def _cos(x: Tensor, y: Tensor) -> Tensor:
    return -torch.sin(x)


@elementwise(aten.sin.default)
def _sin(x: Tensor, y: Tensor) -> Tensor:
    return torch.cos(x)


@elementwise(aten.clamp.default)
def _clamp(x: Tensor, y: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    return (x == y).to(x.dtype)


@tangent_of(aten.neg.default)
def _neg(directions: Directions, result: Tensor, x: Dual) -> Tensor:
    assert x.tangent is not None
    return -x.tangent


@tangent_of(aten.to.dtype)
def _to(directions: Directions, result: Tensor, x: Dual, *rest: Any, **keywords: Any) -> Tensor:
    assert x.tangent is not None
    return x.tangent.to(result.dtype)


# --- two operands that broadcast against each other ---


def _is_batched(result: Tensor, *operands: Any) -> bool:
    """Tell whether `result` holds examples along dimension 0, as its operands say."""
    rows = [operand.value for operand in operands if isinstance(operand, Dual) and operand.batched]
    if any(row.dim() != result.dim() for row in rows):
        raise NotImplementedError(f"operands that turn the batch dimension into another one of {tuple(result.shape)}")
    return bool(rows)


def _scaled(directions: Directions, operand: Any, factor: Any, result: Tensor, *, batched: bool) -> Tensor | None:
    """Tangent of `operand` times the value of `factor`, as a term of the tangent of `result`."""
    if tangent(operand) is None:
        return None
    term = directions.spread(operand, result, batched=batched)
    return directions.scale(term, factor.value, batched=factor.batched) if isinstance(factor, Dual) else term * factor


def _terms(directions: Directions, result: Tensor, *operands: Any) -> list[Tensor | None]:
    """Return the operands' tangents as terms of the tangent of a sum; a single one takes the sum's shape."""
    batched = _is_batched(result, *operands)
    terms = [
        None if tangent(operand) is None else directions.spread(operand, result, batched=batched)
        for operand in operands
    ]
    alone = sum(term is not None for term in terms) == 1
    return [_whole(directions, term, result, batched=batched) if alone and term is not None else term for term in terms]


def _whole(directions: Directions, tangent: Tensor, result: Tensor, *, batched: bool) -> Tensor:
    """Return a tangent in the shape that belongs to `result`."""
    shape = directions.shape(result, batched=batched)
    return tangent if list(tangent.shape) == shape else tangent.expand(shape)


@tangent_of(aten.add.Tensor, aten.add.Scalar)
def _add(directions: Directions, result: Tensor, x: Any, y: Any, alpha: float = 1) -> Tensor:
    left, right = _terms(directions, result, x, y)
    return total(left, right if right is None or alpha == 1 else right * alpha)


@tangent_of(aten.sub.Tensor, aten.sub.Scalar)
def _sub(directions: Directions, result: Tensor, x: Any, y: Any, alpha: float = 1) -> Tensor:
    left, right = _terms(directions, result, x, y)
    if right is None:
        return total(left)
    right = right if alpha == 1 else right * alpha
    return -right if left is None else left - right


@tangent_of(aten.rsub.Scalar)
def _rsub(directions: Directions, result: Tensor, x: Dual, y: float, alpha: float = 1) -> Tensor:
    assert x.tangent is not None
    return x.tangent * -alpha


@tangent_of(aten.mul.Tensor, aten.mul.Scalar)
def _mul(directions: Directions, result: Tensor, x: Any, y: Any) -> Tensor:
    batched = _is_batched(result, x, y)
    return total(_scaled(directions, x, y, result, batched=batched), _scaled(directions, y, x, result, batched=batched))


@tangent_of(aten.div.Tensor, aten.div.Scalar)
def _div(directions: Directions, result: Tensor, x: Any, y: Any) -> Tensor:
    batched = _is_batched(result, x, y)
    inverse = Dual(1 / y.value, None, y.batched) if isinstance(y, Dual) else 1 / y
    left = _scaled(directions, x, inverse, result, batched=batched)
    if tangent(y) is None:
        return total(left)
    slope = Dual(result / -y.value, None, batched)
    return total(left, _scaled(directions, y, slope, result, batched=batched))


@tangent_of(aten.where.self)
def _where(directions: Directions, result: Tensor, condition: Dual, x: Any, y: Any) -> Tensor:
    return _chosen(directions, result, condition, condition.value, x, y)


@tangent_of(aten.where.ScalarOther)
def _where_other(directions: Directions, result: Tensor, condition: Dual, x: Dual, other: float) -> Tensor:
    return _chosen(directions, result, condition, condition.value, x, other)


@tangent_of(aten.masked_fill.Scalar)
def _masked_fill(directions: Directions, result: Tensor, x: Dual, mask: Dual, fill: float) -> Tensor:
    return _chosen(directions, result, mask, ~mask.value, x, fill)


def _chosen(directions: Directions, result: Tensor, condition: Dual, keep: Tensor, x: Any, y: Any) -> Tensor:
    """Tangent of `x` where `keep`, of `y` elsewhere."""
    batched = _is_batched(result, condition, x, y)
    kept = Dual(keep.to(result.dtype), None, condition.batched)
    left = _scaled(directions, x, kept, result, batched=batched)
    if tangent(y) is None:
        return _whole(directions, total(left), result, batched=batched)
    dropped = Dual((~keep).to(result.dtype), None, condition.batched)
    right = _scaled(directions, y, dropped, result, batched=batched)
    return _whole(directions, total(left, right), result, batched=batched)

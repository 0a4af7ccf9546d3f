"""Matrix products: with frozen weights, with adapters, and between activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from export.dual.rule import Directions, Dual, SharesDual, pair_of, tangent_of, total
from export.graph import ops
from export.graph.vocabulary import token_losses, token_losses_along

aten = torch.ops.aten

_FEW = 8
"""Times fewer numbers enter a product than leave it."""


@pair_of(ops.linear)
def _frozen_linear(directions: Directions, x: Dual, weight: Dual) -> tuple[Tensor, Tensor]:
    return _over_both(ops.linear, x, weight)


@pair_of(ops.linear_t)
def _frozen_linear_t(directions: Directions, x: Dual, weight: Dual) -> tuple[Tensor, Tensor]:
    return _over_both(ops.linear_t, x, weight)


def _over_both(product: Callable[[Tensor, Tensor], Tensor], x: Dual, weight: Dual) -> tuple[Tensor, Tensor]:
    """Compute one product over both streams: the weight is read, and packed by the runtime, once."""
    assert x.tangent is not None
    value = x.value if x.batched else x.value.unsqueeze(0)
    both = product(torch.cat([value, x.tangent]), weight.value)
    result, slope = both.split([value.shape[0], x.tangent.shape[0]])
    return result if x.batched else result.squeeze(0), slope


@pair_of(token_losses)
def _token_losses(
    directions: Directions, x: Dual, labels: Dual, weights: list[Dual]
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Differentiate a language model's vocabulary layer and its loss in one; the likeliest tokens have no tangents."""
    assert x.tangent is not None
    *results, slope = token_losses_along(x.value, x.tangent, labels.value, [weight.value for weight in weights])
    return tuple(results), (slope, None)


@tangent_of(aten.linear.default)
def _linear(directions: Directions, result: Tensor, x: Dual, weight: Dual) -> Tensor:
    """Product of x [B, …, in] and an adapter's weight [out, in], whose tangent is [K·B, out, in]."""
    if weight.tangent is None:
        return aten.linear.default(total(x.tangent), weight.value)
    turned = weight.tangent.transpose(1, 2)
    if x.tangent is not None and _widens(directions, x, weight):
        return _as_one(directions, x, weight, turned)
    from_x = None if x.tangent is None else aten.linear.default(x.tangent, weight.value)
    return total(from_x, _times_weights(directions, x, turned, result))


def _widens(directions: Directions, x: Dual, weight: Dual) -> bool:
    """Tell whether a product turns few numbers of a token into many, so that a sum of two such products costs more."""
    alike = x.batched and x.value.dim() == 3 and len(x.value) == directions.batch
    return alike and _FEW * weight.value.shape[1] <= weight.value.shape[0]


def _as_one(directions: Directions, x: Dual, weight: Dual, turned: Tensor) -> Tensor:
    """Compute the sum of dx W and x dW as the product of [dx, x] and W above dW."""
    assert x.tangent is not None
    same = weight.value.transpose(0, 1).unsqueeze(0).expand(len(turned), -1, -1)
    return torch.matmul(torch.cat([x.tangent, directions.match(x)], 2), torch.cat([same, turned], 1))


@tangent_of(aten.matmul.default, aten.bmm.default)
def _matmul(directions: Directions, result: Tensor, x: Dual, y: Dual) -> Tensor:
    """Multiply activations, as in attention, or weights, or an activation and a weight."""
    if y.batched:
        if x.value.dim() != y.value.dim() or y.value.dim() < 3 or not x.batched:
            raise NotImplementedError(f"operands of shapes {tuple(x.value.shape)} and {tuple(y.value.shape)}")
        left = None if x.tangent is None else _times_values(directions, x, y.value, result)
        right = None if y.tangent is None else torch.matmul(directions.shared(x.value), directions.apart(y.tangent))
        return directions.together(total(left, right))
    if y.value.dim() != 2 or x.value.dim() < 2:
        raise NotImplementedError(f"operands of shapes {tuple(x.value.shape)} and {tuple(y.value.shape)}")
    left = None if x.tangent is None else torch.matmul(x.tangent, y.value)
    right = None if y.tangent is None else _times_weights(directions, x, y.tangent, result)
    return total(left, right)


def _times_values(directions: Directions, x: Dual, y: Tensor, result: Tensor) -> Tensor:
    """Product of the tangent of x with y, the directions apart."""
    assert x.tangent is not None
    if isinstance(x, SharesDual) and y.shape[-1] < y.shape[-2]:
        return torch.matmul(x.exponents, directions.shared(y)) - x.sums * directions.shared(result)
    return torch.matmul(directions.apart(x.tangent), directions.shared(y))


def _times_weights(directions: Directions, x: Dual, weights: Tensor, result: Tensor) -> Tensor:
    """Product of x [B, …, in] and the weights [K·B, in, out], one matrix per example and direction."""
    if not x.batched:
        apart = weights.reshape(weights.shape[0], *[1] * (x.value.dim() - 2), *weights.shape[1:])
        return torch.matmul(x.value, apart)
    narrow = weights.shape[2] < weights.shape[1]
    if directions.count > 1 and narrow and x.value.dim() == 3 and len(x.value) == directions.batch:
        return _side_by_side(directions, x.value, weights)
    rows = directions.match(x)
    weights = directions.repeat_rows(weights, result)
    if rows.dim() == 2:
        return torch.matmul(rows.unsqueeze(1), weights).squeeze(1)
    if rows.dim() > 3:
        weights = weights.reshape(weights.shape[0], *[1] * (rows.dim() - 3), *weights.shape[1:])
    return torch.matmul(rows, weights)


def _side_by_side(directions: Directions, x: Tensor, weights: Tensor) -> Tensor:
    """Join an example's narrow matrices of all directions, so that x [B, tokens, in] is read once."""
    apart = weights.unflatten(0, (directions.count, -1))
    together = torch.matmul(x, apart.permute(1, 2, 0, 3).flatten(2))
    return together.unflatten(2, (directions.count, -1)).permute(2, 0, 1, 3).flatten(0, 1)

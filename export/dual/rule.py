"""Define forward-AD rules: from an op's arguments as (value, tangent) pairs, the tangent of its result.

Shapes. A *batched* value has its B examples along dimension 0 and its tangent K·B rows there, direction after
direction: [K·B, …]. A value that depends on no input (an adapter's weight, or what is computed from weights alone) is
*unbatched*, yet its tangent differs from example to example, so the tangent has one leading dimension more:
[K·B, *value.shape].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Target = Callable[..., Any]


@dataclass(frozen=True)
class Dual:
    """A value and its tangent, None where the tangent is zero."""

    value: Tensor
    tangent: Tensor | None
    batched: bool


@dataclass(frozen=True)
class SharesDual(Dual):
    """A softmax along its last axis: its tangent is one of its exponents, less their sum times the shares.

    So a product with it is one with the exponents' tangent alone, less that sum times the product that there is
    already, which has fewer columns than attention has tokens.
    """

    exponents: Tensor
    """Their tangent times the shares, the directions apart."""
    sums: Tensor
    """Over the last axis."""


@dataclass(frozen=True)
class Directions:
    """The number of directions that travel together, and of their examples."""

    count: int
    batch: int

    def match(self, value: Dual | Tensor) -> Tensor:
        """Repeat a value's rows for every direction, to meet a tangent in a matrix product."""
        if isinstance(value, Tensor):
            return value
        if self.count == 1 or not value.batched:
            return value.value
        return torch.cat([value.value] * self.count)

    def apart(self, tangent: Tensor, *, batched: bool = True) -> Tensor:
        """Return a tangent with its directions along an axis of their own, [K, B, …], for values that they share."""
        return tangent if self.count == 1 or not batched else tangent.unflatten(0, (self.count, -1))

    def shared(self, value: Tensor, *, batched: bool = True) -> Tensor:
        """Return a value as it meets a tangent that is apart."""
        return value if self.count == 1 or not batched else value.unsqueeze(0)

    def together(self, apart: Tensor, *, batched: bool = True) -> Tensor:
        """Undo `apart` on a tangent, as it is handed on."""
        return apart if self.count == 1 or not batched else apart.flatten(0, 1)

    def scale(self, tangent: Tensor, factor: Tensor, *, batched: bool = True) -> Tensor:
        """`tangent * factor`, the factor holding one row per example (or none)."""
        scaled = self.apart(tangent, batched=batched) * self.shared(factor, batched=batched)
        return self.together(scaled, batched=batched)

    def spread(self, operand: Dual, result: Tensor, *, batched: bool = True) -> Tensor:
        """Shape a tangent so that it broadcasts against the tangent of `result`.

        If the result is batched [B·R, …], the weight of an unbatched operand meets its last dimensions, and the
        weight's examples meet dimension 0.
        """
        assert operand.tangent is not None
        if operand.batched:
            return operand.tangent
        own = list(operand.value.shape)
        while batched and own and own[0] == 1:
            own.pop(0)
        inner = result.dim() - batched
        if len(own) > inner:
            raise NotImplementedError(f"a weight of shape {tuple(operand.value.shape)} with the batch's dimension")
        shape = [self.count * self.batch, *[1] * (inner - len(own)), *own]
        tangent = operand.tangent if list(operand.tangent.shape) == shape else operand.tangent.reshape(shape)
        return self.repeat_rows(tangent, result) if batched else tangent

    def repeat_rows(self, tangent: Tensor, result: Tensor) -> Tensor:
        """Repeat one row per example as one row per row of `result`, which may have several rows per example."""
        rows_per_example = result.shape[0] // self.batch
        return tangent if rows_per_example == 1 else tangent.repeat_interleave(rows_per_example, 0)

    def shape(self, result: Tensor, *, batched: bool) -> list[int]:
        """Return the shape of the tangent of `result`."""
        if batched:
            return [self.count * result.shape[0], *result.shape[1:]]
        return [self.count * self.batch, *result.shape]


Tangents = Tensor | tuple[Tensor, ...] | list[Tensor] | SharesDual
TangentRule = Callable[..., Tangents]
"""(directions, result, *arguments, **keywords) -> tangent of the result, or the result as a dual."""
PairRule = Callable[..., tuple[Any, Any]]
"""(directions, *arguments, **keywords) -> (result, tangent): for ops that compute both streams at once."""

TANGENTS: dict[Target, TangentRule] = {}
PAIRS: dict[Target, PairRule] = {}


def tangent_of(*targets: Target) -> Callable[[TangentRule], TangentRule]:
    """Register the rule of one or more ops whose value is computed by the op itself."""

    def register(rule: TangentRule) -> TangentRule:
        TANGENTS.update(dict.fromkeys(targets, rule))
        return rule

    return register


def pair_of(*targets: Target) -> Callable[[PairRule], PairRule]:
    """Register the rule of one or more ops that compute value and tangent together."""

    def register(rule: PairRule) -> PairRule:
        PAIRS.update(dict.fromkeys(targets, rule))
        return rule

    return register


def tangent(argument: Any) -> Tensor | None:
    return argument.tangent if isinstance(argument, Dual) else None


def value(argument: Any) -> Any:
    return argument.value if isinstance(argument, Dual) else argument


def total(*terms: Tensor | None) -> Tensor:
    """Sum the terms that exist; at least one does."""
    present = [term for term in terms if term is not None]
    result = present[0]
    for term in present[1:]:
        result = result + term
    return result

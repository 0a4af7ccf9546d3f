"""Define formulations: an op that XNNPACK's delegate does not take, written with ops that it takes.

One function per op, called with the op's own arguments while a program is traced again. An op without one stays as it
is. The delegate knows float tensors of up to six dimensions, products as `bmm` or as a linear with a stored weight,
softmax along the last dimension, and elementwise arithmetic with broadcasting; it knows no booleans (`Mask` stands for
them), no reductions (a product with a row of ones is one) and no `expand` (so is a product with ones).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TINY = 1e-30
"""Keeps quotients defined at 0, and is lost in rounding anywhere else."""


@dataclass(frozen=True)
class Mask:
    """A boolean tensor held as 0.0 and 1.0."""

    ones: Tensor

    def boolean(self) -> Tensor:
        return self.ones.to(torch.bool)


@dataclass(frozen=True)
class Fill:
    """A tensor of one number."""

    number: float
    shape: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        return torch.full(self.shape, self.number, dtype=self.dtype)


Formulation = Callable[..., Any]
FORMULATIONS: dict[Any, Formulation] = {}


def formulation(*targets: Any) -> Callable[[Formulation], Formulation]:
    def register(function: Formulation) -> Formulation:
        FORMULATIONS.update(dict.fromkeys(targets, function))
        return function

    return register


def plain(value: Any) -> Any:
    """Return the tensor that a value stands for."""
    return value.boolean() if isinstance(value, Mask) else value.tensor() if isinstance(value, Fill) else value


def mask_of(value: Any) -> Mask:
    if isinstance(value, Mask):
        return value
    return Mask(value.to(torch.float32))


def same_kind(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return Mask(change(value.ones)) if isinstance(value, Mask) else change(plain(value))


def dims_of(x: Tensor, dims: Sequence[int] | int | None) -> list[int]:
    return list(range(x.dim())) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)

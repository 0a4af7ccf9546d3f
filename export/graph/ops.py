"""Three operators that make frozen weights first-class in a graph.

A captured model holds its frozen matrix products and look-ups as `spry::linear` and `spry::embedding`; the exact
gradient, and a query that attends alone, add `spry::linear_t`, the product with the same weight in its other
orientation. Transforms treat them as opaque, and each runtime decides at lowering how such a weight is stored and
multiplied (fp32, int8, int4).
What remains as `aten.linear` or `aten.matmul` has run-time operands only: adapters and attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_LIBRARY = torch.library.Library("spry", "DEF")
_LIBRARY.define("linear(Tensor x, Tensor weight) -> Tensor")
_LIBRARY.define("linear_t(Tensor gradient, Tensor weight) -> Tensor")
_LIBRARY.define("embedding(Tensor ids, Tensor weight) -> Tensor")


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight)


def _linear_t(gradient: Tensor, weight: Tensor) -> Tensor:
    return torch.matmul(gradient, weight)


def _embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return functional.embedding(ids, weight)


for _name, _kernel in {"linear": _linear, "linear_t": _linear_t, "embedding": _embedding}.items():
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")


def _fake_linear(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _fake_linear_t(gradient: Tensor, weight: Tensor) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], weight.shape[1])


def _fake_embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty(*ids.shape, weight.shape[1])


torch.library.register_fake("spry::linear", _fake_linear, lib=_LIBRARY)
torch.library.register_fake("spry::linear_t", _fake_linear_t, lib=_LIBRARY)
torch.library.register_fake("spry::embedding", _fake_embedding, lib=_LIBRARY)


def _save_weight(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _linear_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (weight,) = ctx.saved_tensors
    return linear_t(gradient, weight), None


def _linear_t_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (weight,) = ctx.saved_tensors
    return linear(gradient, weight), None


torch.library.register_autograd("spry::linear", _linear_backward, setup_context=_save_weight, lib=_LIBRARY)
torch.library.register_autograd("spry::linear_t", _linear_t_backward, setup_context=_save_weight, lib=_LIBRARY)

# The overloads that appear as node targets in graphs.
linear = torch.ops.spry.linear.default
linear_t = torch.ops.spry.linear_t.default
embedding = torch.ops.spry.embedding.default

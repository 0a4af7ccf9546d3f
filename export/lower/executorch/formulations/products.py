"""Matrix products, as batches of matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from export.lower.executorch.formulation import formulation
from export.lower.executorch.formulations.shape import expand

aten = torch.ops.aten


@formulation(aten.matmul.default, aten.bmm.default, aten.mm.default)
def _product(x: Tensor, y: Tensor) -> Tensor:
    if x.dim() == 1:
        return _product(x.reshape(1, -1), y).reshape(*y.shape[:-2], y.shape[-1])
    if y.dim() == 1:
        return _product(x, y.reshape(-1, 1)).reshape(x.shape[:-1])
    if y.dim() == 2:
        flat = torch.bmm(x.reshape(1, -1, x.shape[-1]), y.reshape(1, *y.shape))
        return flat.reshape(*x.shape[:-1], y.shape[-1])
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    left, right = expand(x, [*batch, *x.shape[-2:]]), expand(y, [*batch, *y.shape[-2:]])
    flat = torch.bmm(left.reshape(-1, *x.shape[-2:]), right.reshape(-1, *y.shape[-2:]))
    return flat.reshape(*batch, x.shape[-2], y.shape[-1])


@formulation(aten.linear.default)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply by a weight that is computed at run time."""
    rows, columns = weight.shape
    turned = weight.reshape(columns, rows) if 1 in (rows, columns) else weight.permute(1, 0)
    result = _product(x, turned)
    return result if bias is None else result + bias


@formulation(aten.addmm.default)
def _addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _product(x, y) + bias

"""Look-ups of elements by run-time indices, such as a label's log-probability or the last token's features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from export.dual.rule import Directions, Dual, tangent_of

aten = torch.ops.aten


@tangent_of(aten.gather.default)
def _gather(directions: Directions, result: Tensor, x: Dual, dim: int, index: Dual, **keywords: bool) -> Tensor:
    assert x.tangent is not None
    axis = dim if dim < 0 else dim - x.value.dim()
    if x.batched != index.batched:
        raise NotImplementedError("a batched operand with one that is not")
    if not x.batched:
        return torch.gather(x.tangent, axis, index.value.expand(len(x.tangent), *index.value.shape))
    if axis == -x.value.dim():
        raise NotImplementedError("a gather along the batch dimension")
    return torch.gather(x.tangent, axis, directions.match(index))


@tangent_of(aten.index.Tensor)
def _index(directions: Directions, result: Tensor, x: Dual, indices: Sequence[Dual | None]) -> Tensor:
    """x[rows, positions, …], the rows being the examples in order."""
    assert x.tangent is not None
    values = [None if index is None else index.value for index in indices]
    if not x.batched:
        if any(index is not None and index.batched for index in indices):
            raise NotImplementedError("a look-up in a trainable table")
        return aten.index.Tensor(x.tangent, [None, *values])
    if directions.count == 1:
        return aten.index.Tensor(x.tangent, values)
    apart = x.tangent.unflatten(0, (directions.count, -1))
    return aten.index.Tensor(apart, [None, *values]).flatten(0, 1)

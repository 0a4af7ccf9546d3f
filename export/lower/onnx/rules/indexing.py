"""Parts of a tensor: read, written, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.graph import Graph, Operand
from export.lower.onnx.rule import as_type, rank_of, rule, shape_of

aten = torch.ops.aten


def _bounds(node: fx.Node, dim: int, start: int | None, end: int | None) -> tuple[int, int]:
    size = shape_of(node)[dim]
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@rule(aten.slice.Tensor)
def _slice(
    graph: Graph, node: fx.Node, x: fx.Node, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> str:  # fmt: skip
    bounds = _bounds(x, dim, start, end)
    return graph.op("Slice", x, *(graph.integers(n) for n in (*bounds, dim, step)))


@rule(aten.slice_scatter.default)
def _slice_scatter(
    graph: Graph, node: fx.Node, x: fx.Node, source: fx.Node, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> str:  # fmt: skip
    if step != 1:
        raise NotImplementedError(f"a step of {step}")
    first, last = _bounds(x, dim, start, end)
    size = shape_of(x)[dim]
    parts: list[Operand] = [source]
    if first > 0:
        parts.insert(0, graph.op("Slice", x, *(graph.integers(n) for n in (0, first, dim))))
    if last < size:
        parts.append(graph.op("Slice", x, *(graph.integers(n) for n in (last, size, dim))))
    return graph.op("Concat", *parts, axis=dim)


@rule(aten.select.int)
def _select(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: int) -> str:
    return graph.op("Gather", x, np.asarray(index, np.int64), axis=dim)


@rule(aten.select_scatter.default)
def _select_scatter(graph: Graph, node: fx.Node, x: fx.Node, source: fx.Node, dim: int, index: int) -> str:
    first = index % shape_of(x)[dim]
    row = graph.op("Unsqueeze", source, graph.integers(dim))
    return graph.name(_slice_scatter(graph, node, x, row, dim, first, first + 1))  # type: ignore[arg-type]


@rule(aten.index_select.default)
def _index_select(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node) -> str:
    return graph.op("Gather", x, index, axis=dim)


@rule(aten.gather.default)
def _gather(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, **_sparse: Any) -> str:
    return graph.op("GatherElements", x, index, axis=dim)


@rule(aten.scatter_add.default)
def _scatter_add(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, source: fx.Node) -> str:
    return graph.op("ScatterElements", x, index, source, axis=dim, reduction="add")


@rule(aten.scatter.src)
def _scatter(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, source: fx.Node) -> str:
    return graph.op("ScatterElements", x, index, source, axis=dim)


@rule(aten.scatter.value)
def _scatter_value(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, filled: float) -> str:
    source = graph.op("Expand", as_type(graph, filled, value_of(x).dtype), graph.integers(*shape_of(index)))
    return graph.op("ScatterElements", x, index, source, axis=dim)


def _tuples(graph: Graph, indices: Sequence[fx.Node]) -> tuple[str, list[int]]:
    """Index tensors that broadcast together, as one tensor of tuples [..., n]."""
    common = list(torch.broadcast_shapes(*(value_of(index).shape for index in indices)))
    columns = [
        graph.op("Unsqueeze", graph.op("Expand", index, graph.integers(*common)), graph.integers(-1))
        for index in indices
    ]
    return graph.op("Concat", *columns, axis=-1), common


@rule(aten.index.Tensor)
def _index(graph: Graph, node: fx.Node, x: fx.Node, indices: Sequence[fx.Node | None]) -> str:
    """`x[:, i, j]`: the indexed axes first, one look-up, and their place again."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    present = [index for index in indices if index is not None]
    first, count = axes[0], len(axes)
    if axes != list(range(first, first + count)):
        raise NotImplementedError("index tensors with a whole axis between them")
    if any(value_of(index).dtype != torch.int64 for index in present):
        raise NotImplementedError("index tensors that are not int64")
    places, common = _tuples(graph, present)
    if first == 0:
        return graph.op("GatherND", x, places)
    rest = list(range(first + count, rank_of(x)))
    ahead = graph.op("Transpose", x, perm=[*axes, *range(first), *rest])
    gathered = graph.op("GatherND", ahead, places)
    n = len(common)
    order = [*range(n, n + first), *range(n), *range(n + first, n + first + len(rest))]
    return graph.op("Transpose", gathered, perm=order)


@rule(aten.index_put.default)
def _index_put(
    graph: Graph, node: fx.Node, x: fx.Node, indices: Sequence[fx.Node | None], values: fx.Node,
    accumulate: bool = False,
) -> str:  # fmt: skip
    present = [index for index in indices if index is not None]
    if len(present) != len(indices) or any(value_of(index).dtype != torch.int64 for index in present):
        raise NotImplementedError("index tensors that are missing or not int64")
    places, common = _tuples(graph, present)
    shape = [*common, *shape_of(x)[len(present) :]]
    source: Operand = values
    if shape_of(values) != shape:
        source = graph.op("Expand", values, graph.integers(*shape))
    return graph.op("ScatterND", x, places, source, reduction="add" if accumulate else "none")

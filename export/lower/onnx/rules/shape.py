"""Reshape and reorder tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.graph import Graph
from export.lower.onnx.rule import as_type, rank_of, rule, shape_of

aten = torch.ops.aten


@rule(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default,
)  # fmt: skip
def _reshape(graph: Graph, node: fx.Node, x: fx.Node, *_shape_of: Any) -> str:
    return graph.reshape(x, shape_of(node))


@rule(aten.expand.default, aten.expand_as.default)
def _expand(graph: Graph, node: fx.Node, x: fx.Node, *_sizes: Any) -> str:
    return graph.name(x) if shape_of(x) == shape_of(node) else graph.op("Expand", x, graph.integers(*shape_of(node)))


@rule(aten.transpose.int)
def _transpose(graph: Graph, node: fx.Node, x: fx.Node, a: int, b: int) -> str:
    order = list(range(rank_of(x)))
    order[a], order[b] = order[b], order[a]
    return graph.op("Transpose", x, perm=order)


@rule(aten.permute.default)
def _permute(graph: Graph, node: fx.Node, x: fx.Node, order: Sequence[int]) -> str:
    return graph.op("Transpose", x, perm=[axis % rank_of(x) for axis in order])


@rule(aten.t.default)
def _t(graph: Graph, node: fx.Node, x: fx.Node) -> str:
    return graph.op("Transpose", x, perm=list(reversed(range(rank_of(x)))))


@rule(aten.cat.default)
def _cat(graph: Graph, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    dtype = value_of(node).dtype
    return graph.op("Concat", *(as_type(graph, part, dtype) for part in parts), axis=dim)


@rule(aten.stack.default)
def _stack(graph: Graph, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    axis = graph.integers(dim)
    return graph.op("Concat", *(graph.op("Unsqueeze", part, axis) for part in parts), axis=dim)


@rule(aten.split_with_sizes.default)
def _split(graph: Graph, node: fx.Node, x: fx.Node, sizes: Sequence[int], dim: int = 0) -> list[str]:
    return graph.ops("Split", x, graph.integers(*sizes), outputs=len(sizes), axis=dim)


@rule(aten.split.Tensor)
def _split_evenly(graph: Graph, node: fx.Node, x: fx.Node, size: int, dim: int = 0) -> list[str]:
    whole = shape_of(x)[dim]
    return _split(graph, node, x, [min(size, whole - start) for start in range(0, whole, size)], dim)  # type: ignore[return-value]


@rule(aten.repeat_interleave.self_int)
def _repeat_interleave(graph: Graph, node: fx.Node, x: fx.Node, repeats: int, dim: int, **_size: Any) -> str:
    shape = shape_of(x)
    at = dim % len(shape) + 1
    apart = graph.op("Unsqueeze", x, graph.integers(at))
    spread = graph.op("Expand", apart, graph.integers(*shape[:at], repeats, *shape[at:]))
    return graph.reshape(spread, shape_of(node))

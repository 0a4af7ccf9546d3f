"""Tensors made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.graph import NUMPY, Graph
from export.lower.onnx.rule import rule, shape_of

aten = torch.ops.aten


def _filled(graph: Graph, node: fx.Node, number: float) -> str:
    array = np.asarray([number], NUMPY[value_of(node).dtype])
    if not shape_of(node):
        return graph.constant(array[0])
    # Expand, because a constant of this shape would lie in the file.
    return graph.op("Expand", array, graph.integers(*shape_of(node)))


@rule(aten.full.default)
def _full(graph: Graph, node: fx.Node, shape: Sequence[int], number: float, **_layout: Any) -> str:
    return _filled(graph, node, number)


@rule(aten.full_like.default)
def _full_like(graph: Graph, node: fx.Node, x: fx.Node, number: float, **_layout: Any) -> str:
    return _filled(graph, node, number)


@rule(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def _zeros(graph: Graph, node: fx.Node, *_like: Any, **_layout: Any) -> str:
    return _filled(graph, node, 0)


@rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(graph: Graph, node: fx.Node, *_like: Any, **_layout: Any) -> str:
    return _filled(graph, node, 1)


@rule(aten.scalar_tensor.default)
def _scalar(graph: Graph, node: fx.Node, number: float, **_layout: Any) -> str:
    return graph.constant(np.asarray(number, NUMPY[value_of(node).dtype]))


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(graph: Graph, node: fx.Node, *bounds: float, **_layout: Any) -> str:
    return graph.constant(np.arange(*bounds, dtype=NUMPY[value_of(node).dtype]))

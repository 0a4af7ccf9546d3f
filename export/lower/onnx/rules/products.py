"""Matrix products."""

from __future__ import annotations

import torch
from torch import fx

from export.lower.onnx.frozen import product as multiplied
from export.lower.onnx.graph import Graph
from export.lower.onnx.rule import rule

aten = torch.ops.aten


@rule(aten.matmul.default, aten.mm.default, aten.bmm.default)
def _matmul(graph: Graph, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
    return graph.op("MatMul", a, b)


@rule(aten.addmm.default)
def _addmm(graph: Graph, node: fx.Node, bias: fx.Node, a: fx.Node, b: fx.Node) -> str:
    return graph.op("Add", graph.op("MatMul", a, b), bias)


@rule(aten.linear.default)
def _linear(graph: Graph, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None = None) -> str:
    product = multiplied(graph, x, graph.name(weight), turned=True)
    return product if bias is None else graph.op("Add", product, bias)

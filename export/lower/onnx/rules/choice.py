"""Comparisons, logic, and choices by them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.graph import Graph
from export.lower.onnx.rule import RULES, Rule, as_type, rule

aten = torch.ops.aten


def _comparison(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, a: fx.Node, b: Any) -> str:
        dtype = value_of(a).dtype
        dtype = torch.promote_types(dtype, value_of(b).dtype) if isinstance(b, fx.Node) else dtype
        if isinstance(b, float):
            dtype = torch.float32
        return graph.op(kind, as_type(graph, a, dtype), as_type(graph, b, dtype))

    return translate


for _name, _kind in {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.items():
    _packet = getattr(aten, _name)
    RULES.update(dict.fromkeys((_packet.Tensor, _packet.Scalar), _comparison(_kind)))


@rule(aten.ne.Tensor, aten.ne.Scalar)
def _not_equal(graph: Graph, node: fx.Node, a: fx.Node, b: Any) -> str:
    equal = RULES[aten.eq.Tensor](graph, node, a, b)
    assert isinstance(equal, str)
    return graph.op("Not", equal)


def _logical(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
        if value_of(node).dtype != torch.bool:
            raise NotImplementedError("bits of numbers")
        return graph.op(kind, as_type(graph, a, torch.bool), as_type(graph, b, torch.bool))

    return translate


RULES.update(dict.fromkeys((aten.bitwise_and.Tensor, aten.__and__.Tensor, aten.logical_and.default), _logical("And")))
RULES.update(dict.fromkeys((aten.bitwise_or.Tensor, aten.__or__.Tensor, aten.logical_or.default), _logical("Or")))


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(graph: Graph, node: fx.Node, condition: fx.Node, a: Any, b: Any) -> str:
    dtype = value_of(node).dtype
    return graph.op("Where", condition, as_type(graph, a, dtype), as_type(graph, b, dtype))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(graph: Graph, node: fx.Node, x: fx.Node, mask: fx.Node, filled: Any) -> str:
    return graph.op("Where", mask, as_type(graph, filled, value_of(node).dtype), x)

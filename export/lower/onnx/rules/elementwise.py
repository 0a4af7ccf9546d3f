"""Ops that take each number by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.graph import MICROSOFT, Graph
from export.lower.onnx.rule import RULES, Rule, as_type, rule

aten = torch.ops.aten


def _arithmetic(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, a: Any, b: Any, alpha: float = 1) -> str:
        dtype = value_of(node).dtype
        second = as_type(graph, b, dtype)
        if alpha != 1:
            second = graph.op("Mul", second, as_type(graph, alpha, dtype))
        return graph.op(kind, as_type(graph, a, dtype), second)

    return translate


for _name, _kind in {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}.items():
    _packet = getattr(aten, _name)
    RULES.update(dict.fromkeys((_packet.Tensor, _packet.Scalar), _arithmetic(_kind)))
RULES.update({aten.minimum.default: _arithmetic("Min"), aten.maximum.default: _arithmetic("Max")})


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(graph: Graph, node: fx.Node, a: Any, b: Any, alpha: float = 1) -> str | list[str]:
    return RULES[aten.sub.Tensor](graph, node, b, a, alpha)


@rule(aten.pow.Tensor_Scalar)
def _pow(graph: Graph, node: fx.Node, x: fx.Node, exponent: float) -> str:
    if exponent == 1:
        return graph.name(x)
    return graph.op("Mul", x, x) if exponent == 2 else graph.op("Pow", x, float(exponent))


def _unary(kind: str) -> Rule:
    return lambda graph, node, x: graph.op(kind, x)


for _target, _kind in {
    aten.abs.default: "Abs",
    aten.cos.default: "Cos",
    aten.erf.default: "Erf",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.neg.default: "Neg",
    aten.reciprocal.default: "Reciprocal",
    aten.relu.default: "Relu",
    aten.sigmoid.default: "Sigmoid",
    aten.sin.default: "Sin",
    aten.sqrt.default: "Sqrt",
    aten.tanh.default: "Tanh",
    aten.bitwise_not.default: "Not",
    aten.logical_not.default: "Not",
}.items():
    RULES[_target] = _unary(_kind)


@rule(aten.rsqrt.default)
def _rsqrt(graph: Graph, node: fx.Node, x: fx.Node) -> str:
    return graph.op("Reciprocal", graph.op("Sqrt", x))


@rule(aten.silu.default)
def _silu(graph: Graph, node: fx.Node, x: fx.Node) -> str:
    """Compute silu in one pass: x times the sigmoid of alpha x."""
    return graph.op("QuickGelu", x, domain=MICROSOFT, alpha=1.0)


@rule(aten.gelu.default)
def _gelu(graph: Graph, node: fx.Node, x: fx.Node, approximate: str = "none") -> str:
    return graph.op("Gelu", x, approximate=approximate)


@rule(aten.clamp.default, aten.clamp_min.default)
def _clamp(graph: Graph, node: fx.Node, x: fx.Node, min: float | None = None, max: float | None = None) -> str:  # noqa: A002
    dtype = value_of(node).dtype
    return graph.op("Clip", x, *(None if limit is None else as_type(graph, limit, dtype) for limit in (min, max)))


@rule(aten.clone.default, aten.alias.default, aten.detach.default, aten.contiguous.default, aten.copy.default)
def _same(graph: Graph, node: fx.Node, *values: fx.Node, **_layout: Any) -> str:
    return graph.name(values[-1])


@rule(
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.type_as.default,
)
def _cast(graph: Graph, node: fx.Node, x: fx.Node, *_how: Any, **_layout: Any) -> str:
    return graph.name(as_type(graph, x, value_of(node).dtype))

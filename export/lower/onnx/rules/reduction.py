"""Normalization, and what makes one number of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from export.graph.slots import Role, slot_of, value_of
from export.lower.onnx.graph import Graph, Operand
from export.lower.onnx.rule import RULES, Rule, as_type, rank_of, rule

aten = torch.ops.aten

_FLOOR = -40.0
"""Below the highest score of a row; low enough to add nothing, and no lower, as gradients multiply what is left."""
_OF_VALUES = {aten.matmul.default, aten.bmm.default}
"""The products that scores come from, which no mask does."""


@rule(aten.softmax.int, aten._softmax.default)
def _softmax(graph: Graph, node: fx.Node, x: fx.Node, dim: int, *_type: Any, **_types: Any) -> str:
    scores = as_type(graph, x, value_of(node).dtype)
    return graph.op("Softmax", _above_floor(graph, scores, dim) if _is_causal(x) else scores, axis=dim)


def _above_floor(graph: Graph, scores: Operand, dim: int) -> str:
    """Masked scores as far below a row's highest as leaves shares of 4e-18: denormal ones are five times as slow."""
    highest = graph.op("ReduceMax", scores, graph.integers(dim), keepdims=1)
    return graph.op("Max", scores, graph.op("Add", highest, _FLOOR))


def _is_causal(scores: fx.Node) -> bool:
    """Tell whether a mask by positions, a constant [..., tokens, tokens], is added to scores, which masks half."""
    waiting, seen = [scores] if scores.target is aten.add.Tensor else [], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder" and slot_of(node).role is Role.CONSTANT and _by_positions(value_of(node)):
            return True
        if node not in seen and node.target not in _OF_VALUES:
            waiting.extend(node.all_input_nodes)
        seen.add(node)
    return False


def _by_positions(constant: torch.Tensor) -> bool:
    return constant.dtype == torch.bool and constant.dim() > 1 and constant.shape[-1] == constant.shape[-2] > 1


@rule(aten.log_softmax.int, aten._log_softmax.default)
def _log_softmax(graph: Graph, node: fx.Node, x: fx.Node, dim: int, *_type: Any, **_types: Any) -> str:
    return graph.op("LogSoftmax", as_type(graph, x, value_of(node).dtype), axis=dim)


def _normalized(
    graph: Graph, x: fx.Node, shape: Sequence[int], weight: Any, bias: Any, eps: float, outputs: int
) -> list[str]:
    weight = np.ones(shape, np.float32) if weight is None else weight
    return graph.ops("LayerNormalization", x, weight, bias, outputs=outputs, axis=-len(shape), epsilon=eps)


@rule(aten.layer_norm.default)
def _layer_norm(
    graph: Graph, node: fx.Node, x: fx.Node, shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5, *_enabled: bool,
) -> str:  # fmt: skip
    return _normalized(graph, x, shape, weight, bias, eps, 1)[0]


@rule(aten.native_layer_norm.default)
def _native_layer_norm(
    graph: Graph, node: fx.Node, x: fx.Node, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> list[str]:
    return _normalized(graph, x, shape, weight, bias, eps, 3)


def _reduction(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, **_: Any) -> str:
        axes = [dims] if isinstance(dims, int) else list(dims or range(rank_of(x)))
        return graph.op(kind, as_type(graph, x, value_of(node).dtype), graph.integers(*axes), keepdims=int(keepdim))

    return translate


RULES.update(dict.fromkeys((aten.sum.dim_IntList, aten.sum.default), _reduction("ReduceSum")))
RULES.update(dict.fromkeys((aten.mean.dim, aten.mean.default), _reduction("ReduceMean")))
RULES.update({aten.amax.default: _reduction("ReduceMax"), aten.amin.default: _reduction("ReduceMin")})


@rule(aten.argmax.default)
def _argmax(graph: Graph, node: fx.Node, x: fx.Node, dim: int, keepdim: bool = False) -> str:
    return graph.op("ArgMax", x, axis=dim, keepdims=int(keepdim))


@rule(aten.cumsum.default)
def _cumsum(graph: Graph, node: fx.Node, x: fx.Node, dim: int, **_types: Any) -> str:
    return graph.op("CumSum", as_type(graph, x, value_of(node).dtype), np.asarray(dim, np.int64))

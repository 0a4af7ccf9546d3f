"""Normalization, and what makes one number of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.graph import Graph
from export.lower.onnx.rule import RULES, Rule, as_type, rank_of, rule

aten = torch.ops.aten


@rule(aten.softmax.int, aten._softmax.default)
def _softmax(graph: Graph, node: fx.Node, x: fx.Node, dim: int, *_type: Any, **_types: Any) -> str:
    return graph.op("Softmax", as_type(graph, x, value_of(node).dtype), axis=dim)


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

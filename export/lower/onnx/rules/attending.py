"""Attention of new tokens to a cache that they are written into."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from torch import fx

from export.graph.caching import attend
from export.graph.slots import value_of
from export.lower.onnx.graph import MICROSOFT, Graph
from export.lower.onnx.rule import rule


@rule(attend)
def _attend(
    graph: Graph, node: fx.Node, query: fx.Node, key: fx.Node, value: fx.Node, keys: fx.Node, values: fx.Node,
    positions: fx.Node, scale: float, window: int, softcap: float,
) -> list[str]:  # fmt: skip
    """Attend in place where the caller gives the same memory for a cache and its result."""
    tokens, (_, heads, _, size) = value_of(query).shape[1], value_of(keys).shape
    first = graph.op("Cast", graph.op("Gather", positions, graph.integers(0), axis=1), to=TensorProto.INT32)
    first = graph.op("Reshape", first, graph.integers(1))
    filled, total = (graph.op("Add", first, np.array([count], np.int32)) for count in (tokens - 1, tokens))
    return graph.ops(
        "GroupQueryAttention", query, key, value, keys, values, filled, total, outputs=3, domain=MICROSOFT,
        num_heads=value_of(query).shape[2] // size, kv_num_heads=heads, scale=scale, local_window_size=window,
        softcap=softcap,
    )  # fmt: skip

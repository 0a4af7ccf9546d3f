"""Arithmetic of a program's matrix products, which is nearly all of it."""

from __future__ import annotations

import math

import torch
from torch import fx

from export.graph import ops
from export.graph.slots import value_of

aten = torch.ops.aten

_PRODUCTS = {
    ops.linear, ops.linear_t, aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default,
    aten.addmm.default,
}  # fmt: skip


def count_flops(graph: fx.GraphModule) -> int:
    """Count two operations per multiplication and addition; other ops are left out."""
    total = 0
    for node in graph.graph.nodes:
        if node.target in _PRODUCTS:
            left = node.args[1] if node.target is aten.addmm.default else node.args[0]
            inner = value_of(left).shape[-1]
            total += 2 * math.prod(value_of(node).shape) * inner
    return total

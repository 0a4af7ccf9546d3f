"""Define translation rules: each turns one aten operator into ONNX, one node or a few.

A rule gets the graph, the node and the node's arguments; it returns the value's name, or the names of a tuple's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.graph import DTYPES, NUMPY, Graph, Operand

Rule = Callable[..., str | list[str]]
RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def shape_of(node: fx.Node) -> list[int]:
    return list(value_of(node).shape)


def rank_of(node: fx.Node) -> int:
    return value_of(node).dim()


def as_type(graph: Graph, operand: Any, dtype: torch.dtype) -> Operand:
    """Return an operand in the type that the operation is computed in."""
    if not isinstance(operand, fx.Node):
        return np.asarray(operand, NUMPY[dtype])
    return operand if value_of(operand).dtype == dtype else graph.op("Cast", operand, to=DTYPES[dtype])

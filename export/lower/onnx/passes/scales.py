"""The scales of a product's rows, carried on to the next product that rounds these rows anew.

A row's scale passes through all that multiplies its numbers, and through turns within groups of them: what rounds the
row next finds the same bytes with or without it. So a tangent between two products, with no more than a slope by
element between them, is not written once more for its scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import NodeProto, helper

_ROUNDING = ["QuantizeLinear", "ReduceMax", "ReduceMin"]


@dataclass
class RowScales:
    """The scales of rows that are known while a graph is written; values are names."""

    products: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Each product times its rows' scales, with both of them."""
    rounded: dict[str, str] = field(default_factory=dict[str, str])
    """The scales of rows that are rounded, in one digit."""
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """The number of rows, by their scales [rows, 1]."""
    turns: set[str] = field(default_factory=set[str])
    """Matrices that turn within groups of channels."""


def carry(nodes: list[NodeProto], known: RowScales, results: Collection[str]) -> None:
    """Rewrite `nodes` so that scales are multiplied by later ones in place of the product, where that is the same."""
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in nodes:
        for name in {*node.input}:
            readers[name].append(node)
    unscaled: dict[str, str] = {}
    carried: dict[str, str] = {}
    for scaled, (product, scales) in known.products.items():
        later = _rounded_next(scaled, readers, known, results)
        if later is not None and later not in carried and known.rows[later] == known.rows[scales]:
            unscaled[scaled], carried[later] = product, scales
    kept: list[NodeProto] = []
    for node in nodes:
        name = node.output[0]
        if name in unscaled:
            continue
        node.input[:] = [_with(read) if read in carried else unscaled.get(read, read) for read in node.input]
        kept.append(node)
        if name in carried:
            scales = carried[name]
            both = [name, _with(scales) if scales in carried else scales]
            kept.append(helper.make_node("Mul", both, [_with(name)], name=_with(name)))
    nodes[:] = kept


def _rounded_next(
    value: str, readers: Mapping[str, Sequence[NodeProto]], known: RowScales, results: Collection[str]
) -> str | None:
    """Find the scales of the rounding that a value reaches through operations that its rows' own scales pass."""
    while value not in results:
        following = readers.get(value, [])
        if value in known.rounded and sorted(node.op_type for node in following) == _ROUNDING:
            return known.rounded[value]
        if len(following) != 1 or not _passes(following[0], value, known.turns):
            return None
        value = following[0].output[0]
    return None


def _passes(node: NodeProto, value: str, turns: Collection[str]) -> bool:
    if node.op_type == "MatMul":
        return node.input[0] == value and node.input[1] in turns
    return node.op_type == "Reshape" or (node.op_type == "Mul" and [*node.input].count(value) == 1)


def _with(scales: str) -> str:
    return f"{scales}.carried"

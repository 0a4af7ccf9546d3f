"""Reshapes that a graph does without: each is an operator of its own, and several directions double their number.

A reshape of a reshape is one from what the first began with, and one to the shape that there is already is none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onnx import NodeProto


def join(nodes: list[NodeProto], shapes: Mapping[str, Sequence[int]], results: Collection[str]) -> None:
    """Rewrite `nodes`, in their order; `shapes` are those known, by the values' names."""
    begins: dict[str, str] = {}
    same: dict[str, str] = {}
    for node in nodes:
        node.input[:] = [same.get(name, name) for name in node.input]
        if node.op_type != "Reshape":
            continue
        first, name = begins.get(node.input[0], node.input[0]), node.output[0]
        node.input[0], begins[name] = first, first
        if name in shapes and shapes[name] == shapes.get(first) and name not in results:
            same[name] = first
    read = {name for node in nodes for name in node.input} | {*results}
    nodes[:] = [node for node in nodes if node.op_type != "Reshape" or node.output[0] in read]

"""Order a graph's nodes so that a result is computed just before it is first read.

A result takes memory until its last reader has run. ONNX Runtime runs nodes in the order of the file, and a graph that
was traced forwards and then backwards computes much long before it is read.
"""

from __future__ import annotations

from collections.abc import Collection

from onnx import NodeProto


def delay(nodes: list[NodeProto], given: Collection[str]) -> None:
    """Move a node down to its first reader where all that it reads is held until then anyway.

    `given` names the values that are held throughout: inputs and weights.
    """
    for node in reversed(list(nodes)):
        place = next(i for i, other in enumerate(nodes) if other is node)
        first = next((i for i in range(place + 1, len(nodes)) if _reads(nodes[i], node.output)), place + 1)
        held = {name for later in nodes[first:] for name in later.input}
        if first > place + 1 and all(name in held or name in given for name in node.input if name):
            nodes.insert(first - 1, nodes.pop(place))


def _reads(node: NodeProto, names: Collection[str]) -> bool:
    return any(name in names for name in node.input)

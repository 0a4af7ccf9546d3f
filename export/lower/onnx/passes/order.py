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
    reads = [frozenset(node.input) - {""} for node in nodes]  # in the order of `nodes`, at every moment
    for place in reversed(range(len(nodes))):
        gives = set(nodes[place].output)
        first = next((i for i in range(place + 1, len(nodes)) if not gives.isdisjoint(reads[i])), place + 1)
        if first > place + 1 and reads[place].difference(given) <= frozenset().union(*reads[first:]):
            nodes.insert(first - 1, nodes.pop(place))
            reads.insert(first - 1, reads.pop(place))

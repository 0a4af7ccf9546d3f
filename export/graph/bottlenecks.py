"""Let tangents enter behind a trained first factor: at the few numbers that it makes of each token.

A direction of these numbers is shorter than one of the factor's weights, and the directions of weights that it amounts
to, a product with what enters the factor, are closer to the gradient. The nodes are marked in the captured graph, and
the marks go with them into its segments.
"""

from __future__ import annotations

import torch
from torch import fx

from export.graph.slots import Role, slot_of, value_of

_MARK = "bottleneck"


def mark_bottlenecks(graph: fx.GraphModule) -> None:
    """Products of each text's tokens with a trained factor that is used once.

    What the weights of a factor that several layers share do to a loss is no single product: its tangents enter along
    the weights.
    """
    for node in graph.graph.nodes:
        if node.op == "placeholder" and slot_of(node).role is Role.ADAPTER:
            users = list(node.users)
            if len(users) == 1 and _is_product(users[0], node):
                users[0].meta[_MARK] = slot_of(node).name


def bottlenecks(graph: fx.GraphModule) -> dict[str, fx.Node]:
    """Return the marked products, by the name of the trained factor."""
    return {node.meta[_MARK]: node for node in graph.graph.nodes if _MARK in node.meta}


def entering_node(product: fx.Node) -> fx.Node:
    """Find the node that the factor is multiplied with."""
    return product.all_input_nodes[0]


def token_of(product: fx.Node) -> int | None:
    """Return the only token that it is computed for."""
    return product.meta.get("token")


def _is_product(node: fx.Node, factor: fx.Node) -> bool:
    if node.target is not torch.ops.aten.linear.default or node.args[1] is not factor:
        return False
    entering = node.args[0]
    return isinstance(entering, fx.Node) and value_of(entering).dim() == 3

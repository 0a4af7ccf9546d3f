"""Rows of a vocabulary looked up for their labels, in place of products with zeros and ones.

The way back through a vocabulary in parts (`export.graph.vocabulary`) multiplies each part by the shares of a softmax
and, stacked below them, by a one where a token's label stands: half of the product is a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from export.graph import ops
from export.graph.slots import slot_of, value_of

aten = torch.ops.aten


@dataclass(frozen=True)
class _Stacked:
    """A part's product with shares and with labels, as `vocabulary` writes it."""

    product: fx.Node
    weight: fx.Node
    shares: fx.Node
    labels: fx.Node
    """[batch, tokens, 1], counted from the part's first row."""
    of_shares: fx.Node
    of_labels: fx.Node


def look_up_labels(graph: fx.Graph) -> None:
    """Write the products of all parts with their labels as one look-up in the whole vocabulary."""
    found = [_stacked(node) for node in graph.find_nodes(op="call_function", target=ops.linear_t)]
    parts = [part for part in found if part is not None]
    if not parts:
        return
    _look_up(graph, parts)
    for part in parts:
        with graph.inserting_before(part.product):
            product = graph.call_function(ops.linear_t, (part.shares, part.weight))
        product.meta["val"] = value_of(part.of_shares)
        part.of_shares.replace_all_uses_with(product)


def _look_up(graph: fx.Graph, parts: list[_Stacked]) -> None:
    """Replace the first part's product for labels by a look-up; those of other parts, which are added, are left out."""
    first, rows = parts[0], sum(value_of(part.weight).shape[0] for part in parts)
    weight = first.weight
    with graph.inserting_before(weight):
        whole = graph.placeholder(f"{weight.name}_whole")
    value = value_of(weight)
    whole.meta = {"val": value.new_empty(rows, value.shape[1]), "slot": replace(slot_of(weight), rows=None)}
    with graph.inserting_before(first.product):
        place = _call(graph, aten.clamp.default, first.labels, 0, rows - 1)
        known = _call(graph, aten.ge.Scalar, first.labels, 0)
        found = _call(graph, aten.embedding.default, whole, _call(graph, aten.squeeze.dim, place, -1))
        result = _call(graph, aten.mul.Tensor, found, _call(graph, aten._to_copy.default, known, dtype=torch.float32))
    first.of_labels.replace_all_uses_with(result)
    for part in parts[1:]:
        for user in list(part.of_labels.users):
            (other,) = (source for source in user.all_input_nodes if source is not part.of_labels)
            user.replace_all_uses_with(other)


def _call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*fx.map_arg(args, value_of), **kwargs)
    return node


def _stacked(product: fx.Node) -> _Stacked | None:
    cat, weight = product.args
    if not isinstance(weight, fx.Node) or weight.op != "placeholder" or slot_of(weight).rows is None:
        return None
    if not isinstance(cat, fx.Node) or cat.target is not aten.cat.default:
        return None
    shares, ones = cat.args[0]  # type: ignore[misc]
    labels = _labels(ones)  # type: ignore[arg-type]
    halves = {user.args[1]: user for split in product.users for user in split.users}
    if labels is None or set(halves) != {0, 1} or any(user.target is not aten.add.Tensor for user in halves[1].users):
        return None
    return _Stacked(product, weight, shares, labels, halves[0], halves[1])  # type: ignore[arg-type]


def _labels(ones: fx.Node) -> fx.Node | None:
    """Compare numbers counting up with a label of this part: 1.0 where they are equal."""
    both = ones.args[0]
    if ones.target is not aten._to_copy.default or not isinstance(both, fx.Node):
        return None
    equal = both.args[0]
    if both.target is not aten.bitwise_and.Tensor or not isinstance(equal, fx.Node):
        return None
    place = equal.args[1]
    if equal.target is not aten.eq.Tensor or not isinstance(place, fx.Node) or place.target is not aten.clamp.default:
        return None
    return place.args[0]  # type: ignore[return-value]

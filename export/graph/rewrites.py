"""Rewrite what models write in several ways to one spelling, so that rules and runtimes know fewer operators.

linear, addmm, embedding of a frozen weight     the operators of `export.graph.ops`, a bias added behind
the losses of a language model's tokens         those of its hidden states, by the vocabulary layer's rows in parts
baddbmm                                         bmm, scaled, and the addend added
chunk                                           split_with_sizes
unbind                                          a select per part
a product times a number                        the product of its first operand times the number, if that is smaller
a transpose of a transpose                      permute
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from export.errors import ExportError
from export.graph import ops, vocabulary
from export.graph.captured import Captured
from export.graph.slots import STORED, Role, Slot, slot_of, value_of

aten = torch.ops.aten

VIEWS = {aten.view.default, aten.reshape.default}
_PRODUCTS = (aten.matmul.default, aten.bmm.default, aten.linear.default)
"""The products of two operands that are computed at run time."""
_TRANSPOSES = {aten.t.default, aten.numpy_T.default}
_IN_PLACE: dict[Any, Any] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
    aten.relu_.default: aten.relu.default,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
}


def rewrite(captured: Captured) -> None:
    for node in list(captured.graph.graph.nodes):
        node.target = _out_of_place(node)
        change = _REWRITES.get(node.target)
        if change is not None:
            change(captured, node)


def _out_of_place(node: fx.Node) -> Any:
    """Return the operator that leaves its operand as it is, where nobody would see a difference."""
    if node.target not in _IN_PLACE:
        return node.target
    changed = node.args[0]
    alone = isinstance(changed, fx.Node) and list(changed.users) == [node] and _fresh(changed.target)
    return _IN_PLACE[node.target] if alone else node.target


def _fresh(target: Any) -> bool:
    """Tell whether an operator's result lies in memory of its own."""
    schema = getattr(target, "_schema", None)  # a placeholder has none
    return schema is not None and all(result.alias_info is None for result in schema.returns)


def _stored_weight(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "placeholder" and slot_of(node).role in STORED


def _linear(captured: Captured, node: fx.Node) -> None:
    x, weight, *rest = node.args
    if not _stored_weight(weight):
        if rest and rest[0] is not None:
            _replace(captured, node, [(aten.linear.default, (x, weight)), (aten.add.Tensor, (..., rest[0]))])
        return
    steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [(ops.linear, (x, weight))]
    if rest and rest[0] is not None:
        steps.append((aten.add.Tensor, (..., rest[0])))
    _replace(captured, node, steps)


def _addmm(captured: Captured, node: fx.Node) -> None:
    """GPT-2's Conv1D: bias + x @ weight over flattened tokens, its weight stored [in, out]."""
    bias, flat, weight = node.args
    if not _stored_weight(weight):
        return
    assert isinstance(weight, fx.Node)
    view = next(iter(node.users))
    source = flat.args[0] if isinstance(flat, fx.Node) and flat.target in VIEWS else flat
    turned = _transposed(captured, weight)
    if len(node.users) == 1 and view.target in VIEWS and source is not flat:
        _replace(captured, view, [(ops.linear, (source, turned)), (aten.add.Tensor, (..., bias))])
    else:
        _replace(captured, node, [(ops.linear, (flat, turned)), (aten.add.Tensor, (..., bias))])


def _transposed(captured: Captured, weight: fx.Node) -> fx.Node:
    name = slot_of(weight).name + ".T"
    graph = captured.graph.graph
    for node in graph.nodes:
        if node.op == "placeholder" and slot_of(node).name == name:
            return node
    captured.stored[name] = captured.stored[slot_of(weight).name].T.contiguous()
    with graph.inserting_before(weight):
        turned = graph.placeholder(weight.name + "_t")
    turned.meta = {"val": value_of(weight).T, "slot": Slot(slot_of(weight).role, name)}
    return turned


def _embedding(captured: Captured, node: fx.Node) -> None:
    weight, ids = node.args[:2]
    if not _stored_weight(weight):
        raise ExportError(
            f"the embedding {slot_of(weight).name if isinstance(weight, fx.Node) else weight} is trainable; "
            "expected frozen embeddings: choose adapter targets among the linear layers"
        )
    _replace(captured, node, [(ops.embedding, (ids, weight))])


def _matmul(captured: Captured, node: fx.Node) -> None:
    """Falcon's linear layers: x @ weight.T."""
    x, turned = node.args
    if isinstance(turned, fx.Node) and turned.target in _TRANSPOSES and _stored_weight(turned.args[0]):
        _replace(captured, node, [(ops.linear, (x, turned.args[0]))])


def _baddbmm(captured: Captured, node: fx.Node) -> None:
    """BLOOM's scores: a bias by position and a scaled product."""
    addend, left, right = node.args
    if node.kwargs.get("beta", 1) != 1:
        return
    scaled = (aten.mul.Tensor, (..., node.kwargs.get("alpha", 1)))
    _replace(captured, node, [(aten.bmm.default, (left, right)), scaled, (aten.add.Tensor, (..., addend))])


def _scaled(captured: Captured, node: fx.Node) -> None:
    """Attention's scores are larger than its queries, and what an adapter adds than the few numbers in its middle."""
    product, number = node.args[:2]
    if not isinstance(product, fx.Node) or not isinstance(number, int | float):
        return
    if number == 1 and value_of(product).dtype == value_of(node).dtype:
        if not any(user.target in _IN_PLACE for user in node.users):  # which would change the product too
            _stand_in(captured, node, product)
        return
    if product.target not in _PRODUCTS or len(product.users) > 1 or len(product.args) != 2:
        return
    first, second = product.args
    assert isinstance(first, fx.Node)
    if value_of(first).numel() >= value_of(product).numel():
        return
    scaling: Any = node.target
    with captured.graph.graph.inserting_before(product):
        scaled = captured.graph.graph.call_function(scaling, (first, number))
    scaled.meta = {**product.meta, "val": value_of(first)}
    product.args = (scaled, second)
    _stand_in(captured, node, product)


def _stand_in(captured: Captured, node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)
    captured.graph.graph.erase_node(node)


def _transpose(captured: Captured, node: fx.Node) -> None:
    before = node.args[0]
    if not isinstance(before, fx.Node) or before.target is not aten.transpose.int or len(before.users) > 1:
        return
    order = list(range(value_of(node).dim()))
    for turn in (before, node):
        one, other = turn.args[1:]
        assert isinstance(one, int)
        assert isinstance(other, int)
        order[one], order[other] = order[other], order[one]
    node.target, node.args = aten.permute.default, (before.args[0], order)


def _chunk(captured: Captured, node: fx.Node) -> None:
    x, _, *dim = node.args
    axis = dim[0] if dim else 0
    assert isinstance(axis, int)
    node.target = aten.split_with_sizes.default
    node.args = (x, [part.shape[axis] for part in node.meta["val"]], axis)


def _unbind(captured: Captured, node: fx.Node) -> None:
    x, *dim = node.args
    for part in list(node.users):
        _replace(captured, part, [(aten.select.int, (x, dim[0] if dim else 0, part.args[1]))])


def _token_losses(captured: Captured, node: fx.Node) -> None:
    """Compute losses without whole logits, where nothing else reads them and the layer of the logits is frozen."""
    logits, labels, _ = node.args
    if not isinstance(logits, fx.Node) or logits.target is not ops.linear or len(logits.users) > 1:
        return
    x, weight = logits.args
    if not isinstance(weight, fx.Node) or slot_of(weight).role is not Role.FROZEN:
        return
    node.args = (x, labels, [rows_of(captured, weight, part) for part in vocabulary.parts(*value_of(weight).shape)])


def rows_of(captured: Captured, weight: fx.Node, rows: tuple[int, int]) -> fx.Node:
    """Make some of a weight's rows an input of their own; the weight stays stored whole."""
    with captured.graph.graph.inserting_before(weight):
        part = captured.graph.graph.placeholder(f"{weight.name}_{rows[0]}")
    slot = replace(slot_of(weight), rows=rows)
    part.meta = {"val": slot.of(value_of(weight)), "slot": slot}
    return part


def _replace(captured: Captured, node: fx.Node, steps: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
    """Put a chain of calls in place of `node`; an ellipsis among the arguments is the previous call."""
    graph = captured.graph.graph
    previous: fx.Node | None = None
    with graph.inserting_before(node):
        for target, arguments in steps:
            call = graph.call_function(target, tuple(previous if a is ... else a for a in arguments))
            call.meta = dict(node.meta)
            previous = call
    assert previous is not None
    node.replace_all_uses_with(previous)
    graph.erase_node(node)


_REWRITES: dict[Any, Callable[[Captured, fx.Node], None]] = {
    aten.linear.default: _linear,
    aten.addmm.default: _addmm,
    aten.embedding.default: _embedding,
    aten.matmul.default: _matmul,
    aten.baddbmm.default: _baddbmm,
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar), _scaled),
    aten.transpose.int: _transpose,
    aten.chunk.default: _chunk,
    aten.unbind.int: _unbind,
    vocabulary.token_losses: _token_losses,
}

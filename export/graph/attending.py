"""A single row that attends needs no keys and values of all tokens.

Where one query is left of a block (`export.graph.narrow`), its scores are products of the query with the keys that a
weight makes of each token. The query goes through the weight instead, back to what tokens are before it, and meets
these as they come. Likewise it is not values that are mixed: as the shares of a softmax add up to one, what a layer
makes of the mixed tokens is the mixture of what it makes of each. So as many rows go through the two weights as there
are heads, in place of one for each token; with tangents, in place of one for each token and direction.

Each head has its own part of a row of the hidden size. A row of one head alone holds zeros elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from export.graph import ops
from export.graph.captured import Captured
from export.graph.slots import Role, Slot, slot_of, value_of

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.reshape.default)
_LAYERS = (ops.linear, aten.linear.default)
_ONE_QUERY = 1


@dataclass(frozen=True)
class _Projected:
    """Keys or values of each head [batch, tokens, heads, size], and the tokens that they are made of."""

    tokens: fx.Node
    made: fx.Node
    """[batch, tokens, heads * size], by operators that treat each token alike."""
    heads: int
    size: int

    def pays(self) -> bool:
        """Tell whether rows of heads, with the cost of mixing them, cost less than rows of tokens."""
        tokens, wide = value_of(self.tokens).shape[1], self.heads * self.size
        return self.heads * (wide + tokens) < tokens * wide


def attend_by_heads(captured: Captured) -> None:
    """Rewrite attention of a single query, where nothing but it reads its keys and values."""
    graph = captured.graph.graph
    for node in list(graph.nodes):
        if node.target is aten.matmul.default and value_of(node).dim() == 4 and value_of(node).shape[2] == _ONE_QUERY:
            _scores(captured, node)
            _mixed(captured, node)
    graph.eliminate_dead_code()
    graph.lint()
    captured.graph.recompile()


# --- scores ----------------------------------------------------------------------------------------------------------


def _scores(captured: Captured, product: fx.Node) -> None:
    """Replace the product of q and (W x + b)' by (q W) x' + q b'."""
    query, turned = product.args
    if not isinstance(turned, fx.Node) or not isinstance(query, fx.Node):
        return
    keys = _projected(turned, order=[0, 2, 3, 1])
    layer = None if keys is None else _frozen_layer(keys.made)
    if keys is None or layer is None or not keys.pays():
        return
    weight, bias = layer
    batch, heads, tokens = (value_of(product).shape[axis] for axis in (0, 1, 3))
    write = _Writer(captured, product)
    own = write(aten.mul.Tensor, query, write.heads(heads))
    rows = write(aten.view.default, own, [batch, heads, heads * keys.size])
    back = write(ops.linear_t, rows, weight)
    scores = write(aten.matmul.default, back, write(aten.transpose.int, keys.tokens, 1, 2))
    whole = write(aten.view.default, scores, [batch, heads, 1, tokens])
    if bias is not None:
        of_heads = write(aten.view.default, bias, [1, heads, 1, keys.size])
        of_query = write(aten.sum.dim_IntList, write(aten.mul.Tensor, query, of_heads), [3], True)
        whole = write(aten.add.Tensor, whole, of_query)
    product.replace_all_uses_with(whole)


def _frozen_layer(made: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """Return the weight and the bias of a layer that nothing is trained in."""
    bias: Any = None
    if made.target is aten.add.Tensor:
        made, bias = made.args[:2]  # type: ignore[assignment]
        if not isinstance(bias, fx.Node) or value_of(bias).dim() != 1:
            return None
    return (made.args[1], bias) if made.target is ops.linear else None  # type: ignore[return-value]


# --- what is mixed by them -------------------------------------------------------------------------------------------


def _mixed(captured: Captured, product: fx.Node) -> None:
    """Replace the sum of p (W x + b) by W of the sum of p x, + b, as the shares p add up to one."""
    shares, turned = product.args
    if not isinstance(turned, fx.Node) or not isinstance(shares, fx.Node) or not _come_to_one(shares):
        return
    values = _projected(turned, order=[0, 2, 1, 3])
    if values is None or not values.pays():
        return
    batch, heads, tokens = (value_of(shares).shape[axis] for axis in (0, 1, 3))
    write = _Writer(captured, product)
    mixed = write(aten.matmul.default, write(aten.view.default, shares, [batch, heads, tokens]), values.tokens)
    made = _again(write, values.made, {values.tokens: mixed})
    rows = write(aten.view.default, made, [batch, heads, heads, values.size])
    own = write(aten.mul.Tensor, rows, write.heads(heads))
    whole = write(aten.sum.dim_IntList, own, [2], True)
    product.replace_all_uses_with(whole)


def _come_to_one(shares: fx.Node) -> bool:
    return shares.target is aten.softmax.int and shares.args[1] in (-1, 3)


def _again(write: _Writer, node: fx.Node, known: dict[fx.Node, fx.Node]) -> fx.Node:
    """Make other rows by the nodes that make those of all tokens."""
    if node not in known:
        operands = [
            _again(write, argument, known) if isinstance(argument, fx.Node) and _has_tokens(argument) else argument
            for argument in node.args
        ]
        known[node] = write(node.target, *operands, like=node)
    return known[node]


# --- what keys and values are made of --------------------------------------------------------------------------------


def _projected(turned: fx.Node, *, order: list[int]) -> _Projected | None:
    """Take apart keys or values with this order of axes, if tokens made them one by one and they are read once."""
    view = turned.args[0]
    if not _is_turned(turned, order) or not isinstance(view, fx.Node) or view.target not in _VIEWS:
        return None
    made = view.args[0]
    if not isinstance(made, fx.Node) or value_of(made).dim() != 3 or value_of(view).dim() != 4:
        return None
    tokens = _tokens_of(made)
    if tokens is None or len(turned.users) > 1 or len(view.users) > 1 or len(made.users) > 1:
        return None
    return _Projected(tokens, made, *value_of(view).shape[2:])


def _is_turned(node: fx.Node, order: list[int]) -> bool:
    if node.target is aten.permute.default:
        return [axis % 4 for axis in node.args[1]] == order  # type: ignore[operator,union-attr]
    return node.target is aten.transpose.int and order == [0, 2, 1, 3] and sorted(node.args[1:]) == [1, 2]  # type: ignore[type-var]


def _tokens_of(made: fx.Node) -> fx.Node | None:
    """Find what enters all layers of a sum of layers with their biases and scales, if it is one value for all."""
    if made.target in _LAYERS:
        before, weight = made.args[:2]
        assert isinstance(before, fx.Node)
        assert isinstance(weight, fx.Node)
        if _has_tokens(weight):
            return None
        return (_tokens_of(before) if made.target is aten.linear.default else None) or before
    if made.target not in (aten.add.Tensor, aten.mul.Tensor, aten.mul.Scalar):
        return None
    operands = [operand for operand in made.args if isinstance(operand, fx.Node)]
    moving = [operand for operand in operands if _has_tokens(operand)]
    fixed = [operand for operand in operands if operand not in moving]
    if any(value_of(operand).dim() > 1 for operand in fixed) or made.kwargs:
        return None
    if made.target is not aten.add.Tensor and len(moving) != 1:
        return None
    sources = {_tokens_of(operand) for operand in moving}
    return sources.pop() if len(sources) == 1 else None


def _has_tokens(node: fx.Node) -> bool:
    return value_of(node).dim() == 3


# --- new nodes -------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes nodes in front of another, as part of its module."""

    def __init__(self, captured: Captured, place: fx.Node) -> None:
        self._captured = captured
        self._graph = captured.graph.graph
        self._place = place

    def __call__(self, target: Any, *args: Any, like: fx.Node | None = None) -> fx.Node:
        with self._graph.inserting_before(self._place):
            node = self._graph.call_function(target, args)
        values = fx.map_arg(args, value_of)
        node.meta = {**(like or self._place).meta, "val": target(*values)}
        return node

    def heads(self, count: int) -> fx.Node:
        """Ones where a head's row meets the head's own part, [1, heads, heads, 1]."""
        name = f"constant.heads.{count}"
        for node in self._graph.nodes:
            if node.op == "placeholder" and slot_of(node).name == name:
                return node
        like = value_of(self._place)
        self._captured.stored[name] = torch.eye(count, dtype=like.dtype)[None, :, :, None]
        with self._graph.inserting_before(next(iter(self._graph.nodes))):
            constant = self._graph.placeholder(f"heads_{count}_constant")
        constant.meta = {"val": like.new_empty(1, count, count, 1), "slot": Slot(Role.CONSTANT, name)}
        return constant

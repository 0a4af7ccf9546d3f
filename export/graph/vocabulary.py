"""The losses of a language model's tokens, by its vocabulary layer in parts, so that whole logits never exist.

A vocabulary of 152,000 entries makes 155 MB of logits for 256 tokens, several times over with their tangents or
gradients: more than all else that a step needs. What is wanted of them is little: of each token the log-sum-exp, the
logit of the token that follows, and the likeliest entry. So the layer's rows are walked part by part, and a running
log-sum-exp is kept, with what its tangents or gradients need of the same part.

    token_losses          each token's loss, and the likeliest entry
    token_losses_along    these, and the losses' tangents along tangents of the hidden states
    token_losses_t        gradients by the hidden states

Transforms treat the three as opaque; `expanded` writes them out when a program is whole. Without weights, the first
operand is the logits themselves: where they pass through something else, or where the layer is adapted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx

from export.graph import ops

LARGEST = 2_000_000
"""Weights of the vocabulary layer that are walked at a time, 8 MB where they are needed in float32."""

SMALLEST = 32
"""A part with fewer rows goes to the one before: weights with fewer are not quantized."""

_GROUP = 64
"""Entries of a vocabulary whose highest logit is found first."""

_LIBRARY = torch.library.Library("spry", "FRAGMENT")
_LIBRARY.define("token_losses(Tensor x, Tensor labels, Tensor[] weights) -> (Tensor, Tensor)")
_LIBRARY.define("token_losses_along(Tensor x, Tensor tangent, Tensor labels, Tensor[] weights) -> Tensor[]")
_LIBRARY.define("token_losses_t(Tensor gradient, Tensor x, Tensor labels, Tensor[] weights) -> Tensor")


def parts(rows: int, columns: int) -> list[tuple[int, int]]:
    """Split a vocabulary into parts: a power of two of rows each, and the rest."""
    size = 1 << (max(LARGEST // columns, SMALLEST).bit_length() - 1)
    edges = range(0, max(rows - SMALLEST, 0) + 1, size)
    return list(pairwise([*edges, rows]))


# --- a walk over the parts -------------------------------------------------------------------------------------------


class _Part:
    """Some rows of the vocabulary, as hidden states meet them."""

    def __init__(self, first: int, weight: Tensor | None, x: Tensor, tangent: Tensor | None, labels: Tensor) -> None:
        self.first = first
        self._weight = weight
        self.logits, self.tangents = self._products(x, tangent)
        place = labels.unsqueeze(-1) - first
        self._inside = (place >= 0) & (place < self.logits.shape[-1])
        self._place = place.clamp(0, self.logits.shape[-1] - 1)
        self._highest_of_groups = _highest_of_groups(self.logits)
        highest = self.logits if self._highest_of_groups is None else self._highest_of_groups
        self.highest = highest.amax(-1, keepdim=True)

    def _products(self, x: Tensor, tangent: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Compute one product over both streams, as of other frozen weights."""
        if tangent is None:
            return (x if self._weight is None else ops.linear(x, self._weight)), None
        if self._weight is None:
            return x, tangent
        both = ops.linear(torch.cat([x, tangent]), self._weight)
        logits, tangents = both.split([x.shape[0], tangent.shape[0]])
        return logits, tangents

    def of_label(self, values: Tensor) -> Tensor:
        """[…, 1]: those at the labels; zero of labels that are of other parts."""
        turns = values.shape[0] // self._place.shape[0]
        place, inside = (torch.cat([one] * turns) if turns > 1 else one for one in (self._place, self._inside))
        return torch.where(inside, values.gather(-1, place), 0.0)

    def entries(self) -> Tensor:
        """[…, 1]: the likeliest of this part; runtimes find how high numbers are faster than where they stand."""
        if self._highest_of_groups is None:
            return self.logits.argmax(-1, keepdim=True) + self.first
        group = self._highest_of_groups.argmax(-1)
        groups = self._highest_of_groups.shape[-1]
        first = torch.arange(0, group.numel() * groups, groups, device=group.device)
        inside = self.logits.reshape(-1, _GROUP).index_select(0, first + group.flatten()).unflatten(0, group.shape)
        return (group * _GROUP + inside.argmax(-1)).unsqueeze(-1) + self.first

    def back(self, weighted: Tensor) -> tuple[Tensor, Tensor]:
        """Compute weighted logits, and the labels' alone, back into hidden states."""
        numbers = torch.arange(weighted.shape[-1], device=weighted.device)
        labels = ((numbers == self._place) & self._inside).to(weighted.dtype)
        if self._weight is None:
            return weighted, labels
        both = ops.linear_t(torch.cat([weighted, labels]), self._weight)
        of_weighted, of_labels = both.split([weighted.shape[0], labels.shape[0]])
        return of_weighted, of_labels


def _highest_of_groups(logits: Tensor) -> Tensor | None:
    """[…, groups]; None where groups would not be whole."""
    return None if logits.shape[-1] % _GROUP else logits.unflatten(-1, (-1, _GROUP)).amax(-1)


def _walk(x: Tensor, labels: Tensor, weights: Sequence[Tensor], tangent: Tensor | None = None) -> Iterator[_Part]:
    first = 0
    for weight in weights or (None,):
        yield _Part(first, weight, x, tangent, labels)
        first += 0 if weight is None else weight.shape[0]


class _Sums:
    """Running sums over the vocabulary, all scaled by the exponential of the highest logit so far."""

    def __init__(self) -> None:
        self._highest: Tensor | None = None
        self._entry: Tensor | None = None
        self._sums: dict[str, Tensor] = {}
        self._of_label: dict[str, Tensor] = {}

    def add(self, part: _Part, *, tangents: bool = False, gradients: bool = False) -> None:
        before, fading, entry = self._highest, None, part.entries()
        if before is None or self._entry is None:
            self._highest, self._entry = part.highest, entry
        else:
            self._highest = torch.maximum(before, part.highest)
            self._entry = torch.where(part.highest > before, entry, self._entry)
            fading = torch.exp(before - self._highest)
        shares = torch.exp(part.logits - self._highest)
        self._put("one", shares.sum(-1, keepdim=True), fading)
        self._put_of_label("logit", part.of_label(part.logits))
        if tangents:
            assert part.tangents is not None
            self._put("tangent", _each(shares, part.tangents).sum(-1, keepdim=True), fading)
            self._put_of_label("tangent", part.of_label(part.tangents))
        if gradients:
            weighted, of_label = part.back(shares)
            self._put("gradient", weighted, fading)
            self._put_of_label("gradient", of_label)

    def _put(self, name: str, value: Tensor, fading: Tensor | None) -> None:
        self._sums[name] = value if fading is None else _each(fading, self._sums[name]) + value

    def _put_of_label(self, name: str, value: Tensor) -> None:
        self._of_label[name] = value if name not in self._of_label else self._of_label[name] + value

    def losses(self) -> tuple[Tensor, Tensor]:
        """Return each token's loss, and the likeliest entry behind it."""
        assert self._highest is not None
        assert self._entry is not None
        loss = self._highest + torch.log(self._sums["one"]) - self._of_label["logit"]
        return loss.squeeze(-1), self._entry.squeeze(-1)

    def derivatives(self, name: str) -> Tensor:
        """Compute the derivatives of each token's loss along what the walk has summed up under a name."""
        return _each(1 / self._sums["one"], self._sums[name]) - self._of_label[name]


def _each(factor: Tensor, values: Tensor) -> Tensor:
    """Multiply [B, …] by [K·B, …], for each direction."""
    turns = values.shape[0] // factor.shape[0]
    if turns == 1:
        return values * factor
    return (values.unflatten(0, (turns, -1)) * factor.unsqueeze(0)).flatten(0, 1)


def _token_losses(x: Tensor, labels: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    sums = _Sums()
    for part in _walk(x, labels, weights):
        sums.add(part)
    return sums.losses()


def _token_losses_along(x: Tensor, tangent: Tensor, labels: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    sums = _Sums()
    for part in _walk(x, labels, weights, tangent):
        sums.add(part, tangents=True)
    return [*sums.losses(), sums.derivatives("tangent").squeeze(-1)]


def _token_losses_differentiated(
    x: Tensor, labels: Tensor, weights: Sequence[Tensor]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Losses and likeliest entries, and each token's gradient by its own hidden state: nothing is computed twice."""
    sums = _Sums()
    for part in _walk(x, labels, weights):
        sums.add(part, gradients=True)
    return sums.losses(), sums.derivatives("gradient")


def _token_losses_t(gradient: Tensor, x: Tensor, labels: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return gradient.unsqueeze(-1) * _token_losses_differentiated(x, labels, weights)[1]


# --- the operators ---------------------------------------------------------------------------------------------------


def _fake_losses(x: Tensor, labels: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return x.new_empty(labels.shape), labels.new_empty(labels.shape)


def _fake_along(x: Tensor, tangent: Tensor, labels: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [*_fake_losses(x, labels, weights), tangent.new_empty(tangent.shape[:-1])]


def _fake_t(gradient: Tensor, x: Tensor, labels: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return torch.empty_like(x)


for _name, _kernel, _fake in (
    ("token_losses", _token_losses, _fake_losses),
    ("token_losses_along", _token_losses_along, _fake_along),
    ("token_losses_t", _token_losses_t, _fake_t),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"spry::{_name}", _fake, lib=_LIBRARY)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, list[Tensor]], output: Any) -> None:
    x, labels, weights = inputs
    ctx.save_for_backward(x, labels, *weights)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, None, list[None]]:
    x, labels, *weights = ctx.saved_tensors
    return token_losses_t(gradient, x, labels, weights), None, [None] * len(weights)


torch.library.register_autograd("spry::token_losses", _backward, setup_context=_save, lib=_LIBRARY)

# The overloads that appear as node targets in graphs.
token_losses = torch.ops.spry.token_losses.default
token_losses_along = torch.ops.spry.token_losses_along.default
token_losses_t = torch.ops.spry.token_losses_t.default

_WRITTEN_OUT: dict[Any, Any] = {
    token_losses: _token_losses,
    token_losses_along: _token_losses_along,
    token_losses_t: _token_losses_t,
}


# --- in programs -----------------------------------------------------------------------------------------------------


def is_walked(graph: fx.GraphModule) -> bool:
    """Tell whether a graph has any of the operators."""
    return any(node.target in _WRITTEN_OUT for node in graph.graph.nodes)


class WrittenOut(fx.Interpreter):
    """Runs a graph with the operators as the walks that they stand for, losses and their gradients in one."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._node: fx.Node | None = None
        self._differentiated = {_walked(node) for node in graph.graph.nodes if node.target is token_losses_t}
        self._slopes: dict[Any, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        self._node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if target not in _WRITTEN_OUT:
            return super().call_function(target, args, dict(kwargs))
        assert self._node is not None
        walked = _walked(self._node)
        if target is token_losses and walked in self._differentiated:
            losses, self._slopes[walked] = _token_losses_differentiated(*args)
            return losses
        if target is token_losses_t and walked in self._slopes:
            return args[0].unsqueeze(-1) * self._slopes[walked]
        return _WRITTEN_OUT[target](*args)


def _walked(node: fx.Node) -> str:
    """Which hidden states, labels and weights a node is about."""
    return repr(node.args[-3:])

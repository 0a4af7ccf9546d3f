"""A causal model's forward over a few new tokens, with the keys and values of those before as inputs.

transformers lets an attention of ours stand in for a model's own (`AttentionInterface`). It is given what a layer makes
of the new tokens, after positions were turned in; here it attends to them and to a cache of fixed length, of which the
first `position` entries are filled, and gives the new keys and values back as results. Whoever runs the programs writes
them into the cache, in place: no program copies it.

    key.N     [heads, size, length]   of layer N, so that scores are a product without a transposition
    value.N   [heads, length, size]

Scores of cached and of new tokens are two products, side by side in one softmax.

Some runtimes have an operator for all of that (`spry::attend`), which writes the new keys and values into the cache and
reads no more of it than is filled. Both caches are then [1, heads, rows, size], and the results are the caches: whoever
runs the programs gives the same memory for both. A chunk of a prompt is written whole, padding and all, for which
caches have some rows more than there are tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from transformers import AttentionInterface

from export.errors import ExportError
from export.graph import ops, vocabulary
from export.graph.capture import captured
from export.graph.captured import Captured
from export.graph.editing import share_equal_nodes
from export.graph.rewrites import rows_of
from export.graph.slots import Role, Slot, slot_of, value_of

_NAME = "spry_cached"
IDS, POSITIONS, LAST = "input_ids", "position_ids", "last"
"""Inputs: new tokens, their positions (both [1, tokens]), and where several are new, the place of the last [1]."""


_MULTIPLE = 8
"""The divisor of a head's size that the operator needs."""


def key_name(layer: int) -> str:
    return f"key.{layer}"


def value_name(layer: int) -> str:
    return f"value.{layer}"


@dataclass(frozen=True)
class CacheShape:
    """The shape of what a layer keeps of each token."""

    heads: int
    key: int
    value: int


@dataclass
class _Walk:
    """One pass through a model: caches by layer, and what the pass adds to them."""

    positions: Tensor
    length: int
    caches: Sequence[tuple[Tensor, Tensor]] = ()
    """Empty in a pass that only finds out their shapes."""
    in_place: bool = False
    """True if one operator attends, and writes into the cache."""
    added: list[tuple[Tensor, Tensor]] = field(default_factory=list)


_LIBRARY = torch.library.Library("spry", "FRAGMENT")
_LIBRARY.define(
    "attend(Tensor query, Tensor key, Tensor value, Tensor keys, Tensor values, Tensor positions, float scale, "
    "int window, float softcap) -> (Tensor, Tensor, Tensor)"
)


def _fake_attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, *_others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(keys), torch.empty_like(values)


torch.library.register_fake("spry::attend", _fake_attend, lib=_LIBRARY)
attend = torch.ops.spry.attend.default
"""Attention of new tokens [1, tokens, heads x size] to them and those in the caches, which come back with the new."""

_walks: list[_Walk] = []
"""The pass that goes on, as models hand their attention nothing of ours."""


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None, **_more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attend in one layer: `query` [1, query heads, tokens, size], `key` and `value` [1, heads, tokens, size]."""
    walk = _walks[-1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if walk.in_place:
        rows = (states.transpose(1, 2).flatten(2) for states in (query, key, value))
        cached = walk.caches[len(walk.added)]
        mixed, *caches = attend(*rows, *cached, walk.positions, scale, sliding_window or -1, softcap or 0.0)
        walk.added.append((caches[0], caches[1]))
        return mixed.reshape(1, query.shape[2], query.shape[1], -1), None
    keys, values = key[0].transpose(1, 2), value[0]
    cached = walk.caches[len(walk.added)] if walk.caches else _nothing(keys, values, walk.length)
    walk.added.append((keys, values))
    heads, tokens = values.shape[:2]
    grouped = (query[0] * scale).reshape(heads, -1, query.shape[-1])
    scores = torch.cat([torch.matmul(grouped, cached[0]), torch.matmul(grouped, keys)], -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    seen = _seen(walk.positions[0], walk.length, sliding_window)
    scores = scores.reshape(heads, -1, tokens, walk.length + tokens) + seen
    shares = torch.softmax(scores, -1).reshape(heads, -1, walk.length + tokens)
    old, new = shares.split([walk.length, tokens], -1)
    mixed = torch.matmul(old, cached[1]) + torch.matmul(new, values)
    return mixed.reshape(1, query.shape[1], tokens, -1).transpose(1, 2), None


def _nothing(keys: Tensor, values: Tensor, length: int) -> tuple[Tensor, Tensor]:
    return keys.new_zeros(*keys.shape[:2], length), values.new_zeros(values.shape[0], length, values.shape[2])


def _seen(positions: Tensor, length: int, window: int | None) -> Tensor:
    """[tokens, length + tokens]: 0 where a new token sees one, the lowest number where not."""
    tokens = positions.shape[0]
    slots, new = torch.arange(length), torch.arange(tokens)
    cached = slots < positions[:1].unsqueeze(1)
    among = new <= new.unsqueeze(1)
    if window is not None:
        cached = cached & (slots > positions.unsqueeze(1) - window)
        among = among & (new > new.unsqueeze(1) - window)
    allowed = torch.cat([cached.expand(tokens, length), among], -1)
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


AttentionInterface.register(_NAME, _attention)


@contextmanager
def _attending(model: nn.Module, walk: _Walk) -> Generator[None, None, None]:
    """Make the model's layers attend by our attention; it builds no masks then."""
    each: list[Any] = [module.config for module in model.modules() if hasattr(module, "config")]
    configs = {id(config): config for config in each}
    before = {key: getattr(config, "_attn_implementation", None) for key, config in configs.items()}
    _walks.append(walk)
    try:
        for config in configs.values():
            config._attn_implementation = _NAME
        yield
    finally:
        _walks.pop()
        for key, config in configs.items():
            config._attn_implementation = before[key]


class CachedForward(nn.Module):
    """Calls a model on new tokens: logits of the last, and each layer's new keys and values."""

    def __init__(self, model: nn.Module, length: int, *, in_place: bool) -> None:
        super().__init__()
        self.model = model
        self.length = length
        self.in_place = in_place

    def forward(self, ids: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        several = ids.shape[1] > 1
        caches = rest[several:]
        walk = _Walk(positions, self.length, list(zip(caches[::2], caches[1::2], strict=True)), self.in_place)
        kept = {"logits_to_keep": rest[0]} if several else {}
        with _attending(self.model, walk):
            logits = self.model(input_ids=ids, position_ids=positions, **kept).logits
        return logits, *(tensor for pair in walk.added for tensor in pair)


def cache_shapes(model: nn.Module, layers: int) -> list[CacheShape]:
    """Return the shape of each layer's cache, as a pass over one token finds it."""
    walk = _Walk(torch.zeros(1, 1, dtype=torch.int64), 1)
    with torch.no_grad(), _attending(model, walk):
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64), position_ids=walk.positions)
    if len(walk.added) != layers:
        raise ExportError(
            f"a key-value cache needs {layers} layers of attention that transformers lets others compute, this model "
            f"has {len(walk.added)}; export it without --generate"
        )
    return [CacheShape(value.shape[0], key.shape[1], value.shape[2]) for key, value in walk.added]


def attends_by_operator(shapes: Sequence[CacheShape]) -> bool:
    """Tell whether the operator that writes into the cache knows such layers."""
    return all(shape.key == shape.value and shape.key % _MULTIPLE == 0 for shape in shapes)


def capture_cached(
    model: nn.Module,
    shapes: Sequence[CacheShape],
    length: int,
    tokens: int,
    trainable: dict[int, Slot],
    *,
    in_place: bool = False,
) -> Captured:
    """Capture the forward over so many new tokens with a cache of a length: (logits, key.0, value.0, key.1, …)."""
    inputs = {name: torch.zeros(1, tokens, dtype=torch.int64) for name in (IDS, POSITIONS)}
    if tokens > 1:
        inputs[LAST] = torch.zeros(1, dtype=torch.int64)
    for layer, shape in enumerate(shapes):
        whole = 1, shape.heads, length, shape.key
        inputs[key_name(layer)] = torch.zeros(whole if in_place else (shape.heads, shape.key, length))
        inputs[value_name(layer)] = torch.zeros(whole if in_place else (shape.heads, length, shape.value))
    cached = captured(CachedForward(model, length, in_place=in_place), inputs, trainable, results=1 + 2 * len(shapes))
    _logits_in_parts(cached)
    return cached


def _logits_in_parts(cached: Captured) -> None:
    """Split the vocabulary layer by the same rows as in training: a part may have to be turned or unpacked."""
    graph = cached.graph.graph
    logits: fx.Node = graph.output_node().args[0][0]  # type: ignore[index,assignment]
    for node in list(graph.nodes):
        weight = node.args[1] if node.target is ops.linear else None
        if not isinstance(weight, fx.Node) or slot_of(weight).role is not Role.FROZEN:
            continue
        parts = vocabulary.parts(*value_of(weight).shape)
        if value_of(node).shape[-1] != value_of(logits).shape[-1] or len(parts) == 1:
            continue
        with graph.inserting_before(node):
            products = [
                graph.call_function(ops.linear, (node.args[0], rows_of(cached, weight, part))) for part in parts
            ]
            whole = graph.call_function(torch.ops.aten.cat.default, (products, -1))
        for product, (first, stop) in zip(products, parts, strict=True):
            product.meta = {**node.meta, "val": value_of(node)[..., first:stop]}
        whole.meta = dict(node.meta)
        node.replace_all_uses_with(whole)
        graph.erase_node(node)
    share_equal_nodes(graph)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users and slot_of(node).role is not Role.INPUT:
            graph.erase_node(node)
    graph.lint()
    cached.graph.recompile()

"""Which linear layers an adapter should change, read off the captured graph instead of a table of model names.

Attention is a softmax between two products: the scores come from queries and keys, the result mixes values. The
projections are the nearest linear layers behind these operands. The feed-forward output is a block's last linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import fx

from export.errors import ExportError
from export.graph import ops
from export.graph.captured import Captured
from export.graph.rewrites import VIEWS
from export.graph.segments import block_calls
from export.graph.slots import slot_of

aten = torch.ops.aten

_PRODUCTS = {aten.matmul.default, aten.bmm.default}


@dataclass(frozen=True)
class Projections:
    """Module names, in model order without repeats."""

    query: tuple[str, ...]
    key: tuple[str, ...]
    value: tuple[str, ...]
    feedforward: tuple[str, ...]


def find_projections(captured: Captured, layers: int) -> Projections:
    queries, keys, values = [], [], []
    for softmax in captured.graph.graph.nodes:
        if softmax.target is not aten.softmax.int:
            continue
        scores = _back_to(softmax.args[0], lambda node: node.target in _PRODUCTS)
        mixed = _product_of(softmax)
        if scores is None or mixed is None:
            continue
        queries.append(_linear_behind(scores.args[0]))
        keys.append(_linear_behind(scores.args[1]))
        values.append(_linear_behind(mixed.args[1]))
    if not queries:
        raise ExportError("found no attention (a softmax between two matrix products); name --target-modules yourself")
    calls = block_calls(captured.graph, layers)
    last_linear = {block: node for node, block in calls.items() if node.target is ops.linear}
    return Projections(_names(queries), _names(keys), _names(values), _names(last_linear.values()))


def _back_to(node: object, wanted: Callable[[fx.Node], bool]) -> fx.Node | None:
    """Find the nearest node behind `node` (itself included) that is wanted, breadth first."""
    pending = [node] if isinstance(node, fx.Node) else []
    seen: set[fx.Node] = set()
    while pending:
        candidate = pending.pop(0)
        if wanted(candidate):
            return candidate
        if candidate not in seen:
            seen.add(candidate)
            pending.extend(candidate.all_input_nodes)
    return None


def _product_of(node: fx.Node) -> fx.Node | None:
    """Return the product that reads a node, or a view of it."""
    for user in node.users:
        product = user if user.target in _PRODUCTS else _product_of(user) if user.target in VIEWS else None
        if product is not None:
            return product
    return None


def _linear_behind(node: object) -> fx.Node:
    linear = _back_to(node, lambda candidate: candidate.target is ops.linear)
    if linear is None:
        raise ExportError("an attention operand comes from no linear layer; name --target-modules yourself")
    return linear


def _names(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    weights = [slot_of(node.args[1]).name for node in nodes]  # type: ignore[arg-type]
    return tuple(dict.fromkeys(name.removesuffix(".T").removesuffix(".weight") for name in weights))


def shortest_patterns(names: Iterable[str], every_linear: Iterable[str]) -> list[str]:
    """Module names cut to their last part where that names the same layers, as PEFT users write them."""
    wanted = set(names)
    leaves = sorted({name.rpartition(".")[2] for name in wanted})
    matched = {name for name in every_linear if name.rpartition(".")[2] in leaves}
    return leaves if matched == wanted else sorted(wanted)

"""A captured graph cut at block boundaries into a chain: embed, groups of blocks, head.

Blocks are found in the graph, not by name: the largest module class that is called once per hidden layer. What
crosses a boundary and depends on inputs and weights is the hidden state; what does not (masks, positions) is computed
again in each segment, so every segment stands alone. A norm at a block's end belongs to the segment behind it: what
crosses is then a sum, for which the way back through a block need not compute that block's last product again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from edge_client.bundle.manifest import EMBED, HEAD
from export.errors import ExportError
from export.graph.captured import Captured
from export.graph.editing import module_of
from export.graph.slots import Role, Slot, slot_of, value_of

_STATE = 3
"""Axes of a hidden state: texts, tokens, features."""


@dataclass
class SegmentGraph:
    """A run of the graph: its first state (none for `embed`) to its last, or to the losses and logits."""

    name: str
    graph: fx.GraphModule
    blocks: range

    @property
    def one_token(self) -> bool:
        """True if its blocks hand on a single token of each text."""
        state = value_of(self.graph.graph.output_node().args[0][0]) if self.blocks else None  # type: ignore[index]
        return state is not None and state.dim() == _STATE and state.shape[1] == 1

    def slots(self, *roles: Role) -> list[Slot]:
        return [slot_of(n) for n in self.graph.graph.nodes if n.op == "placeholder" and slot_of(n).role in roles]


def block_calls(graph: fx.GraphModule, layers: int) -> dict[fx.Node, int]:
    """Return the block that each node belongs to; nodes outside all blocks are absent."""
    calls: dict[str, dict[str, None]] = {}  # module class -> its calls in order
    size: Counter[str] = Counter()
    for node in graph.graph.nodes:
        for call, (_path, kind) in (node.meta.get("nn_module_stack") or {}).items():
            name = kind if isinstance(kind, str) else kind.__qualname__
            calls.setdefault(name, {})[call] = None
            size[name] += 1
    candidates = [name for name, seen in calls.items() if len(seen) == layers]
    if not candidates:
        raise ExportError(
            f"found no module that is called {layers} times (config.num_hidden_layers), so the model cannot be cut "
            f"into blocks; calls per class: { {name: len(seen) for name, seen in calls.items()} }"
        )
    block_class = max(candidates, key=lambda name: size[name])
    index = {call: i for i, call in enumerate(calls[block_class])}
    return {
        node: index[call]
        for node in graph.graph.nodes
        for call in (node.meta.get("nn_module_stack") or {})
        if call in index
    }


def boundaries(layers: int, cuts: int | None) -> list[int]:
    """First blocks of the groups: all blocks, or `cuts` of them spread evenly."""
    count = layers if cuts is None else min(cuts, layers)
    return sorted({round(i * layers / count) for i in range(count)})


def split(captured: Captured, layers: int, starts: Sequence[int], *, apart: bool = False) -> list[SegmentGraph]:
    """Cut before each block in `starts` (ascending, the first is 0).

    Segments that may be taken `apart`, to stand behind another than their neighbour, end in their own norms.
    """
    graph = captured.graph.graph
    block_of = block_calls(captured.graph, layers)
    hidden = _below(graph, Role.INPUT) & _below(graph, Role.FROZEN, Role.ADAPTER, Role.HEAD)
    order = {node: i for i, node in enumerate(graph.nodes)}
    first_of_block = [min(order[n] for n, b in block_of.items() if b == block) for block in range(layers)]
    last = max(order[n] for n in block_of) + 1
    cut_positions = [first_of_block[start] for start in starts] + [last]
    trained = _below(graph, Role.ADAPTER, Role.HEAD)
    states = [_crossing_state(graph, order, hidden, position) for position in cut_positions]
    if not apart:
        states = [_before_norm(state, trained) for state in states]

    results: list[fx.Node] = list(graph.output_node().args[0])  # type: ignore[arg-type]
    segments = [_extract(EMBED, None, [states[0]], graph, range(0))]
    for i, start in enumerate(starts):
        stop = starts[i + 1] if i + 1 < len(starts) else layers
        own = [node for node in results if cut_positions[i] <= order[node] < cut_positions[i + 1]]
        segments.append(_extract(f"block.{i}", states[i], [states[i + 1], *own], graph, range(start, stop)))
    of_head = [node for node in results if order[node] >= last]
    segments.append(_extract(HEAD, states[-1], of_head, graph, range(layers, layers)))
    return segments


def _below(graph: fx.Graph, *roles: Role) -> set[fx.Node]:
    """Nodes that depend on a placeholder of these roles."""
    below: set[fx.Node] = set()
    for node in graph.nodes:
        starts = node.op == "placeholder" and slot_of(node).role in roles
        if starts or any(source in below for source in node.all_input_nodes):
            below.add(node)
    return below


def _crossing_state(graph: fx.Graph, order: dict[fx.Node, int], hidden: set[fx.Node], position: int) -> fx.Node:
    crossing = [
        node
        for node in hidden
        if node.op != "placeholder"
        and order[node] < position
        and any(order[user] >= position for user in _readers(node))
    ]
    if len(crossing) != 1:
        shapes = {node.name: tuple(value_of(node).shape) for node in crossing}
        raise ExportError(
            f"expected one hidden state between two blocks of the model, found {len(crossing)}: {shapes}; "
            "models that hand several tensors from block to block are not supported"
        )
    return crossing[0]


def _before_norm(state: fx.Node, trained: set[fx.Node]) -> fx.Node:
    """Find what a state is the norm of, if it is one and the norm is frozen."""
    inputs = state.all_input_nodes
    is_frozen = _is_norm(state) and inputs[0].op != "placeholder" and trained.isdisjoint(inputs[1:])
    return inputs[0] if is_frozen else state


def _is_norm(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.layer_norm.default


def _readers(node: fx.Node) -> list[fx.Node]:
    """List what reads a node but the end of the graph: a block's own results, such as its keys, cross nothing."""
    return [user for user in node.users if user.op != "output"]


def _extract(
    name: str, state: fx.Node | None, results: Sequence[fx.Node], source: fx.Graph, blocks: range
) -> SegmentGraph:
    """Copy what `results` need, going back no further than `state`."""
    needed: set[fx.Node] = set()
    pending = list(results)
    while pending:
        node = pending.pop()
        if node in needed:
            continue
        needed.add(node)
        if node is not state:
            pending.extend(node.all_input_nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    if state is not None:
        copies[state] = graph.placeholder("hidden")
        copies[state].meta = {"val": state.meta["val"], "slot": Slot(Role.STATE, "hidden")}
    for role in (Role.INPUT, Role.ADAPTER, Role.HEAD, Role.FROZEN, Role.CONSTANT):
        for node in source.nodes:
            if node in needed and node is not state and node.op == "placeholder" and slot_of(node).role is role:
                copies[node] = graph.node_copy(node)
    computed = [node for node in source.nodes if node in needed and node not in copies]
    # The norm of what enters first, wherever the model has it: equal blocks have equal graphs.
    first = {node for node in computed if _is_norm(node) and {*node.all_input_nodes} <= copies.keys()}
    for node in sorted(computed, key=lambda node: node not in first or node.args[0] is not state):
        copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    graph.output(tuple(copies[node] for node in results))
    graph.lint()
    return SegmentGraph(name, module_of(graph), blocks)

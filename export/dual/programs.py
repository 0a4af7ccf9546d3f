"""The programs of a segment, as graphs that any runtime can be given.

    plain   state -> state                                   the forward
    enter   state, directions -> state, tangent              the first segment with tangents
    dual    state, tangent, directions -> state, tangent     the segments after it
    vjp     state, gradient -> gradient, adapter gradients   the exact step, backwards, one segment at a time; no
                                                             gradient where nothing before it is trained

The head's programs end in per-example losses, `plain` in what predictions are read from, and the others add what
training needs: `enter` and `dual` the directional derivatives and the head's exact gradient, `scalar` the directional
derivative along the head's own direction instead, `vjp` the gradients that start the way back.

A direction of a unit whose tangents enter at a bottleneck is one of what leaves its factor, [K·B, tokens, rank]; what
it amounts to as a direction of the factor's weights is one more result.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from edge_client.bundle.manifest import DUAL, ENTER, HEAD, PLAIN, SCALAR, VJP
from edge_client.bundle.names import DIRECTION, WEIGHT
from export.graph.segments import SegmentGraph
from export.graph.slots import STORED, Role, Slot, slot_of


@dataclass(frozen=True)
class Program:
    """One graph: placeholders with slots (inputs first, then stored tensors), and named results."""

    segment: str
    kind: str
    directions: int
    """K; 0 where a program carries no tangents."""
    graph: fx.GraphModule
    outputs: tuple[str, ...]

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.graph.nodes if node.op == "placeholder"]

    @property
    def inputs(self) -> list[fx.Node]:
        return [node for node in self.placeholders if slot_of(node).role not in STORED]

    @property
    def stored(self) -> list[fx.Node]:
        return [node for node in self.placeholders if slot_of(node).role in STORED]

    @property
    def results(self) -> list[fx.Node]:
        return list(self.graph.graph.output_node().args[0])  # type: ignore[arg-type]


def input_name(slot: Slot) -> str:
    """Return the name under which a client passes a tensor to a program."""
    prefix = {Role.DIRECTION: DIRECTION, Role.ADAPTER: WEIGHT, Role.HEAD: WEIGHT}.get(slot.role, "")
    return prefix + slot.name


def kinds(segment: SegmentGraph, *, trained_before: bool) -> list[str]:
    """Which programs a segment needs; `trained_before` tells whether an earlier segment holds a unit."""
    own = bool(segment.slots(Role.ADAPTER))
    result = [PLAIN]
    if own:
        result.append(ENTER)
    if trained_before:
        result.append(DUAL)
    if segment.name == HEAD:
        if segment.slots(Role.HEAD):
            result.append(SCALAR)
        result.append(VJP)
    elif own or trained_before:
        result.append(VJP)
    return result

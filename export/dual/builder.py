"""Programs by segment and kind: segments of the same structure share one trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from edge_client.bundle.manifest import DUAL, EMBED, ENTER, HEAD, SCALAR, VJP
from edge_client.bundle.names import GRADIENT, MOVED, prefix_of
from export.dual.programs import Program
from export.dual.tracer import Tracer
from export.graph.bottlenecks import bottlenecks
from export.graph.editing import module_of
from export.graph.segments import SegmentGraph
from export.graph.slots import Slot, slot_of

_MOST = 512
"""The number of traces that a process keeps for the next model of the same structure."""


_traced: dict[tuple[Any, ...], Program] = {}


def build(segment: SegmentGraph, kind: str, directions: int, *, lowest: bool = False, pieces: int = 1) -> Program:
    """Build a program of a segment; segments of the same structure share one trace, in all exports of a process.

    Args:
        segment: captured at the program's batch, or with `pieces` at one piece's.
        kind: which of its programs.
        directions: K.
        lowest: whether no earlier segment holds a unit, so that no gradient goes back beyond this one.
        pieces: how many parts of the batch go through the segment one after the other.
    """
    count = directions if kind in (ENTER, DUAL, SCALAR) else 0
    lowest = lowest and kind == VJP
    key = (_structure(segment), segment.name == HEAD, segment.name == EMBED, kind, count, lowest, pieces)
    if key not in _traced:
        _traced[key] = Tracer(segment, kind, count, lowest=lowest, pieces=pieces).program()
    while len(_traced) > _MOST:
        del _traced[next(iter(_traced))]
    return _renamed(_traced[key], segment)


def _structure(segment: SegmentGraph) -> str:
    lines, entered = [], set(bottlenecks(segment.graph).values())
    for node in segment.graph.graph.nodes:
        value = node.meta.get("val")
        shape = tuple(value.shape) if isinstance(value, Tensor) else None
        role = slot_of(node).role.value if node.op == "placeholder" else node.target
        dtype = str(getattr(value, "dtype", ""))
        lines.append(((role, node in entered), shape, dtype, node.args, node.kwargs))
    order = {node: f"%{i}" for i, node in enumerate(segment.graph.graph.nodes)}
    return repr([(r, s, d, fx.map_arg(a, order.get), fx.map_arg(k, order.get)) for r, s, d, a, k in lines])


def _renamed(program: Program, segment: SegmentGraph) -> Program:
    """Rename a trace for another segment of the same structure: slots by position."""
    own = [slot_of(node) for node in segment.graph.graph.nodes if node.op == "placeholder"]
    first: list[Slot] = program.graph.meta["segment_slots"]
    if program.segment == segment.name and first == own:
        return program
    rename = dict(zip(first, own, strict=True))
    names = {slot.name: other.name for slot, other in zip(first, own, strict=True)}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(program.graph.graph, copies)
    graph.output(output)
    for node, copy in copies.items():
        if node.op == "placeholder":
            slot = slot_of(node)
            other = rename.get(slot)
            copy.meta = {**node.meta, "slot": other or replace(slot, name=names.get(slot.name, slot.name))}
    module = module_of(graph)
    module.meta["segment_slots"] = own
    outputs = tuple(_renamed_output(name, names) for name in program.outputs)
    return Program(segment.name, program.kind, program.directions, module, outputs)


def _renamed_output(name: str, names: Mapping[str, str]) -> str:
    prefix = prefix_of(name, (GRADIENT, MOVED))
    return prefix + names[name.removeprefix(prefix)] if prefix else name

"""A model that was adapted, captured, cut into a chain of segments and differentiated, before any runtime is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from edge_client.bundle.manifest import DUAL, ENTER, HEAD, SCALAR, VJP
from edge_client.commands.progress import Progress
from export.adapt.adapted import Adapted
from export.dual.builder import build
from export.dual.generation import generation_programs
from export.dual.programs import Program, kinds
from export.graph.attending import attend_by_heads
from export.graph.bottlenecks import mark_bottlenecks
from export.graph.capture import capture
from export.graph.captured import Captured
from export.graph.narrow import narrow
from export.graph.segments import SegmentGraph, boundaries, split
from export.graph.slots import Role, slot_of, value_of
from export.lower.target import Linking, Shaped, lowering
from export.model.loading import Loaded
from export.options import ExportOptions

_TOGETHER, _MOST_PIECES = 512, 4
"""Tokens, each with its tangents, that go through a block together: what is made of more leaves a processor's cache.
Each piece of a batch is written out, so that they are few."""
_BACK = 0
"""The key in place of a number of directions of the backward pass."""
_LIKE_BACK = 2
"""The directions that hold as many values as the gradients of the backward pass."""
_IN_PIECES = (ENTER, DUAL, VJP)


@dataclass
class DifferentiatedModel:
    """A model's chain of segments and the programs of every shape."""

    segments: list[SegmentGraph]
    programs: dict[str, list[Shaped]]
    """The programs by segment."""
    generation: dict[str, dict[str, list[Shaped]]]
    """The programs that generate text, by runtime and segment."""
    stored: dict[str, Tensor]

    def all_of(self, segment: str, runtime: str) -> list[Shaped]:
        return self.programs[segment] + self.generation.get(runtime, {}).get(segment, [])


@dataclass(frozen=True)
class Parts:
    """The parts that a bundle is written and verified from."""

    options: ExportOptions
    loaded: Loaded
    adapted: Adapted
    chain: DifferentiatedModel
    processors: Mapping[str, str]
    """The processors that each runtime's files are made for."""
    in_files: bool = False
    """True if the model's weights are mapped, and read while they are needed."""


def differentiate(loaded: Loaded, adapted: Adapted, options: ExportOptions, progress: Progress) -> DifferentiatedModel:
    programs: dict[str, list[Shaped]] = {}
    stored: dict[str, Tensor] = {}
    segments: list[SegmentGraph] = []

    def segments_of(batch: int, length: int) -> list[SegmentGraph]:
        captured = capture(adapted.model, loaded.task, loaded.example_inputs(batch, length), adapted.slots)
        narrow(captured)
        if adapted.at_bottlenecks:
            mark_bottlenecks(captured.graph)  # where tokens are multiplied by a factor, which heads would be instead
        else:
            attend_by_heads(captured)
        _merge(stored, captured)
        # With little memory a few segments are verified as a model of their own.
        return split(captured, loaded.layers, boundaries(loaded.layers, options.cuts), apart=bool(options.low_memory))

    for batch, length in options.shapes:
        segments = segments_of(batch, length)
        sizes = {count: rows_of_piece(batch, length, count) for count in (_BACK, *options.directions)}
        smaller = {size: segments_of(size, length) for size in {*sizes.values()} - {batch}}
        pieces = {count: (batch // size, smaller.get(size, segments)) for count, size in sizes.items()}
        for program in _programs(segments, pieces):
            programs.setdefault(program.segment, []).append(Shaped(program, batch, length))
        progress.advance(f"{batch}x{length}")
    generation = _generation(loaded, adapted, options, stored) if options.generate else {}
    return DifferentiatedModel(segments, programs, generation, stored)


def _generation(
    loaded: Loaded, adapted: Adapted, options: ExportOptions, stored: dict[str, Tensor]
) -> dict[str, dict[str, list[Shaped]]]:
    """Trace the programs that generate, by runtime and segment; what they store is added to `stored`."""
    starts = boundaries(loaded.layers, options.cuts)
    linking = {runtime: isinstance(lowering(runtime), Linking) for runtime in options.runtimes}
    generation: dict[bool, dict[str, list[Shaped]]] = {}
    for linked in sorted({*linking.values()}):
        generating = generation_programs(
            adapted.model, loaded.layers, starts, options.generate, adapted.slots, linked=linked
        )
        for program, tokens in generating.programs:
            of_segment = generation.setdefault(linked, {}).setdefault(program.segment, [])
            of_segment.append(Shaped(program, 1, tokens))
        for name, tensor in generating.stored.items():
            stored.setdefault(name, tensor)
    return {runtime: generation[linked] for runtime, linked in linking.items()}


def rows_of_piece(batch: int, length: int, directions: int) -> int:
    """Count the examples that go through a block together with their tangents, or back through it.

    Along a single direction all do: it holds fewer values than the backward pass.
    """
    if directions == 1:
        return batch
    tokens = length * (directions or _LIKE_BACK)
    few = [size for size in range(1, batch + 1) if batch % size == 0 and batch // size <= _MOST_PIECES]
    return max((size for size in few if size * tokens <= _TOGETHER), default=few[0])


def _programs(
    segments: Sequence[SegmentGraph], pieces: Mapping[int, tuple[int, Sequence[SegmentGraph]]]
) -> list[Program]:
    """Build all of the segments' programs; `pieces` are their number by K, and the segments at the batch of one."""
    programs: list[Program] = []
    trained_before = False
    for i, segment in enumerate(segments):
        for kind in kinds(segment, trained_before=trained_before):
            counts = [count for count in pieces if count != _BACK] if kind in (ENTER, DUAL, SCALAR) else [_BACK]
            for count in counts:
                number, parts = pieces[count] if kind in _IN_PIECES and _is_of_all_tokens(segment) else (1, segments)
                programs.append(build(parts[i], kind, count, lowest=not trained_before, pieces=number))
        trained_before = trained_before or bool(segment.slots(Role.ADAPTER))
    return programs


def _is_of_all_tokens(segment: SegmentGraph) -> bool:
    """Tell whether a segment computes much of each token: a last block does not, of which one token's row is read."""
    results: Sequence[fx.Node] = segment.graph.graph.output_node().args[0]  # type: ignore[assignment]
    states = [n for n in segment.graph.graph.find_nodes(op="placeholder") if slot_of(n).role is Role.STATE]
    is_row = any(value_of(state).shape != value_of(results[0]).shape for state in states)
    return segment.name != HEAD and not (is_row and len(segment.blocks) == 1)


def _merge(stored: dict[str, Tensor], captured: Captured) -> None:
    for name, tensor in captured.stored.items():
        stored.setdefault(name, tensor)

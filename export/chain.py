"""A model that was adapted, captured, cut into a chain of segments and differentiated, before any runtime is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from export.adapt.wrapping import Adapted
from export.dual.generation import generation_programs
from export.dual.programs import Program, ProgramBuilder, kinds
from export.graph.bottlenecks import mark_bottlenecks
from export.graph.capture import Captured, capture
from export.graph.narrow import narrow
from export.graph.segments import SegmentGraph, boundaries, split
from export.graph.slots import Role
from export.lower.target import Shaped
from export.model.loading import Loaded
from export.options import ExportOptions
from export.progress import Progress


@dataclass
class DifferentiatedModel:
    """A model's chain of segments and the programs of every shape."""

    segments: list[SegmentGraph]
    programs: dict[str, list[Shaped]]
    """By segment."""
    generation: dict[str, list[Shaped]]
    """Those that generate text, by segment."""
    stored: dict[str, Tensor]

    def all_of(self, segment: str) -> list[Shaped]:
        return self.programs[segment] + self.generation.get(segment, [])


@dataclass(frozen=True)
class Parts:
    """What a bundle is written and verified from."""

    options: ExportOptions
    loaded: Loaded
    adapted: Adapted
    chain: DifferentiatedModel
    processors: Mapping[str, str]
    """By runtime, what its files are made for."""


def differentiate(loaded: Loaded, adapted: Adapted, options: ExportOptions, progress: Progress) -> DifferentiatedModel:
    programs: dict[str, list[Shaped]] = {}
    stored: dict[str, Tensor] = {}
    segments: list[SegmentGraph] = []
    for batch, length in options.shapes:
        captured = capture(adapted.model, loaded.task, loaded.example_inputs(batch, length), adapted.slots)
        narrow(captured)
        if adapted.at_bottlenecks:
            mark_bottlenecks(captured.graph)
        segments = split(captured, loaded.layers, boundaries(loaded.layers, options.cuts))
        for program in _programs(segments, options.directions):
            programs.setdefault(program.segment, []).append(Shaped(program, batch, length))
        _merge(stored, captured)
        progress.advance(f"{batch}x{length}")
    generation: dict[str, list[Shaped]] = {}
    if options.generate:
        starts = boundaries(loaded.layers, options.cuts)
        found = generation_programs(adapted.model, loaded.layers, starts, options.generate, adapted.slots)
        for program, tokens in found.programs:
            generation.setdefault(program.segment, []).append(Shaped(program, 1, tokens))
        for name, tensor in found.stored.items():
            stored.setdefault(name, tensor)
    return DifferentiatedModel(segments, programs, generation, stored)


def _programs(segments: Sequence[SegmentGraph], directions: Sequence[int]) -> list[Program]:
    builder = ProgramBuilder()
    programs: list[Program] = []
    trained_before = False
    for segment in segments:
        for kind in kinds(segment, trained_before=trained_before):
            first, *more = (
                builder.build(segment, kind, count, lowest=not trained_before) for count in directions
            )
            programs += [first, *more] if first.directions else [first]
        trained_before = trained_before or bool(segment.slots(Role.ADAPTER))
    return programs


def _merge(stored: dict[str, Tensor], captured: Captured) -> None:
    for name, tensor in captured.stored.items():
        stored.setdefault(name, tensor)

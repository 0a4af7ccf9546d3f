"""The programs that generate text: each segment's forward over new tokens, with a cache of those before.

    prefill   some of a prompt's tokens at a time
    decode    one token

The segments are those of training, so that a runtime stores their weights once for both. Where a runtime's lowering
links them (`export.lower.target.Linking`), attention writes into the cache itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from edge_client.bundle.manifest import DECODE, HEAD, PREFILL
from export.dual.programs import Program
from export.graph.caching import attends_by_operator, cache_shapes, capture_cached, key_name, value_name
from export.graph.segments import SegmentGraph, split
from export.graph.slots import Slot

CHUNK = 64
"""A prompt's tokens at a time; short ones are padded to it, and each pass of long ones packs the weights anew."""


@dataclass(frozen=True)
class Generation:
    """The programs of all segments, and what they read of the model."""

    programs: list[tuple[Program, int]]
    """The programs, each with its number of new tokens."""
    stored: dict[str, Tensor]


def generation_programs(
    model: nn.Module, layers: int, starts: Sequence[int], length: int, trainable: dict[int, Slot], *, linked: bool
) -> Generation:
    """Build a model's programs that generate, cut before each block in `starts`, with a cache of `length` tokens."""
    shapes = cache_shapes(model, layers)
    in_place = linked and attends_by_operator(shapes)
    rows = length + min(CHUNK, length) - 1 if in_place else length  # a chunk's padding is written too
    programs: list[tuple[Program, int]] = []
    stored: dict[str, Tensor] = {}
    for kind, tokens in ((PREFILL, min(CHUNK, length)), (DECODE, 1)):
        cached = capture_cached(model, shapes, rows, tokens, trainable, in_place=in_place)
        stored.update(cached.stored)
        for segment in split(cached, layers, starts):
            program = Program(segment.name, kind, 0, segment.graph, _outputs(segment))
            programs.append((program, tokens))
    return Generation(programs, stored)


def _outputs(segment: SegmentGraph) -> tuple[str, ...]:
    first = "logits" if segment.name == HEAD else "hidden"
    return first, *(name for block in segment.blocks for name in (key_name(block), value_name(block)))

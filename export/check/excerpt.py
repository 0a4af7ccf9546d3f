"""A few blocks of a model as a model of their own: what is verified where the whole would take too long.

Each block takes what another one leaves, so that the first, a middle and the last make a model too, with the embedding
before and the head behind them. Of the bundle it is a shorter chain of segments; of the eager model, blocks that are
left out hand on what they are given.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from torch import Tensor, fx, nn

from edge_client.bundle.manifest import Manifest, Segment
from export.graph.segments import SegmentGraph
from export.graph.slots import Role, slot_of, value_of


def few_segments(segments: Sequence[Segment], structures: Sequence[object] = ()) -> list[Segment]:
    """Return the embedding, the first, middle and last group of blocks, the first of each structure, and the head."""
    embed, *groups, head = segments
    first = {structure: number for number, structure in reversed([*enumerate(structures)])}
    chosen = sorted({0, len(groups) // 2, len(groups) - 1, *first.values()})
    return [embed, *(groups[number] for number in chosen), head]


def structure(segment: SegmentGraph) -> str:
    """Describe a segment's computation, whatever its weights."""
    places = {node: number for number, node in enumerate(segment.graph.graph.nodes)}
    lines: list[str] = []
    for node in places:
        if node.op == "placeholder":
            slot = slot_of(node)
            own = slot.name if slot.role is Role.CONSTANT else ""  # masks and the like are named by their content
            lines.append(f"{slot.role} {own} {tuple(value_of(node).shape)}")
        else:
            arguments = fx.map_arg((node.args, node.kwargs), lambda n: f"%{places[n]}")  # type: ignore[arg-type]
            lines.append(f"{node.target} {arguments}")
    return "\n".join(lines)


def stand_alone(segments: Sequence[SegmentGraph], stored: Mapping[str, Tensor], blocks: Sequence[nn.Module]) -> bool:
    """Tell whether every segment reads its own blocks' weights alone, so that it may stand behind any other."""
    owner = {p.data_ptr(): number for number, block in enumerate(blocks) for p in block.parameters()}
    for segment in segments:
        frozen = [stored[slot.name].data_ptr() for slot in segment.slots(Role.FROZEN)]
        if any(owner[place] not in segment.blocks for place in frozen if place in owner):
            return False
    return True


def excerpt(manifest: Manifest, segments: Sequence[Segment]) -> Manifest:
    """Return a bundle as if it had no other segments than these."""
    names = {segment.name for segment in segments}
    runtimes = {
        name: msgspec.structs.replace(
            runtime, programs=tuple(program for program in runtime.programs if program.segment in names)
        )
        for name, runtime in manifest.runtimes.items()
    }
    units = tuple(unit for unit in manifest.units if names.issuperset(unit.segments))
    return msgspec.structs.replace(manifest, segments=tuple(segments), units=units, runtimes=runtimes)


@contextmanager
def only(blocks: Sequence[nn.Module], segments: Sequence[Segment]) -> Generator[None, None, None]:
    """While the context lasts, a model's other blocks do nothing."""
    kept = {block for segment in segments for block in range(segment.first_block, segment.last_block)}
    form: list[int] = []  # how many results a block has beside its state; -1 where it gives the state alone
    hook = blocks[min(kept)].register_forward_hook(lambda _block, _given, result: form.append(_others(result)))
    skipped: list[Any] = [block for number, block in enumerate(blocks) if number not in kept]
    for block in skipped:
        block.forward = lambda *given, **named: _handed_on(form[-1], *given, **named)
    try:
        yield
    finally:
        hook.remove()
        for block in skipped:
            del block.forward


def _others(result: Tensor | tuple[Any, ...]) -> int:
    return -1 if isinstance(result, Tensor) else len(result) - 1


def _handed_on(others: int, *given: Any, **named: Any) -> Any:
    state = given[0] if given else named["hidden_states"]
    return state if others < 0 else (state, *[None] * others)

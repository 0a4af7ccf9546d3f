"""Programs of a small model as lowerings get them, and what they and their files are tried with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, fx

from edge_client.bundle.manifest import ProgramSpec, TensorSpec
from export.dual.builder import build
from export.dual.programs import Program, input_name, kinds
from export.graph import ops
from export.graph.slots import Role, slot_of, value_of
from export.lower.target import Lowering, Precision, ProgramEntry, Shaped
from tests.export.models import VOCABULARY, Chain

BATCH, LENGTH = 3, 7


def segment_programs(chain: Chain, index: int, directions: int = 1) -> list[Shaped]:
    """Every program of one segment."""
    before = any(segment.slots(Role.ADAPTER) for segment in chain.segments[:index])
    segment = chain.segments[index]
    built = [build(segment, kind, directions) for kind in kinds(segment, trained_before=before)]
    return [Shaped(program, BATCH, LENGTH) for program in built]


def programs_of(chain: Chain, directions: int = 1) -> dict[str, list[Shaped]]:
    """Every program of every segment."""
    return {segment.name: segment_programs(chain, i, directions) for i, segment in enumerate(chain.segments)}


def random_inputs(program: Program) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for node in program.inputs:
        value, name = value_of(node), slot_of(node).name
        if value.dtype.is_floating_point:
            yield torch.randn(value.shape, generator=generator)
        elif name == "attention_mask":
            yield (torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 2], [1]])).to(value.dtype)
        else:
            limit = 2 if name in ("labels", "token_type_ids") else VOCABULARY
            yield torch.randint(limit, value.shape, generator=generator)


def as_stored(
    lowering: Lowering, program: Program, stored: Mapping[str, Tensor], precision: Precision
) -> Iterator[Tensor]:
    """The program's stored tensors as the runtime sees them."""
    for node in program.stored:
        slot, targets = slot_of(node), {user.target for user in node.users if user.args[-1] is node}
        seen = stored[slot.name]
        if targets & {ops.linear, ops.linear_t, ops.embedding}:
            seen = lowering.dequantized(slot.name, seen, precision, embedding=ops.embedding in targets)
        yield slot.of(seen)


def compared(program: Program, name: str, value: Tensor) -> Tensor:
    """Return the part of a result to compare: a language model's losses of tokens, as rounding turns the likeliest."""
    labels = [value_of(node).shape for node in program.inputs if slot_of(node).name == "labels"]
    return value[..., 1:] if name == "logits" and (BATCH, LENGTH) in labels else value


def spec_of(shaped: Shaped, entry: ProgramEntry) -> ProgramSpec:
    """As the manifest of a bundle has it."""

    def tensor(name: str, node: fx.Node) -> TensorSpec:
        value = value_of(node)
        return TensorSpec(name, str(value.dtype).removeprefix("torch."), tuple(value.shape))

    program = shaped.program
    return ProgramSpec(
        program.segment, program.kind, shaped.batch, shaped.length, program.directions, entry.file, entry.method,
        tuple(tensor(input_name(slot_of(node)), node) for node in program.inputs),
        tuple(tensor(name, node) for name, node in zip(program.outputs, program.results, strict=True)),
        flops=0, load_bytes=0, peak_bytes=0,
    )  # fmt: skip


def write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

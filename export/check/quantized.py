"""The model as a runtime's quantization sees it: the reference of verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from edge_client.bundle.manifest import PLAIN
from export.graph import ops
from export.graph.slots import Role, slot_of
from export.lower.target import Precision, Shaped, lowering
from export.model.mapped import Scratch, let_go


def dequantized_weights(
    programs: Mapping[str, Sequence[Shaped]],
    stored: Mapping[str, Tensor],
    model: nn.Module,
    runtime: str,
    precision: Precision,
    processor: str,
    scratch: Scratch | None = None,
) -> dict[str, Tensor]:
    """Parameter name in `model` -> the values that the runtime computes with; nothing where nothing is quantized.

    With `scratch` they are mapped from there, and those that they are made from are let go.
    """
    if precision == "none":
        return {}
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    uses = weight_uses(programs)
    values: dict[str, Tensor] = {}
    for name, readers in uses.items():
        target = lowering(runtime, processor)
        seen = target.dequantized(name, stored[name], precision, embedding=readers == {ops.embedding})
        turned = name.endswith(".T")
        address = _address(model, name.removesuffix(".T")) if turned else stored[name].data_ptr()
        value = seen.T.contiguous() if turned else seen
        if scratch is not None:
            if value.data_ptr() != stored[name].data_ptr():
                value = scratch.moved(value)
            let_go([stored[name]])
        values[names[address]] = value
    return values


def relative_change(values: Mapping[str, Tensor], model: nn.Module) -> float:
    """Compute by how much the runtime's weights differ from the model's, as a share of these (root mean squares)."""
    moved = total = 0.0
    for name, value in values.items():
        weight = model.get_parameter(name).detach()
        total += float(weight.square().sum())
        moved += float((value - weight).square().sum())
        let_go([weight, value])
    return (moved / total) ** 0.5 if total else 0.0


def weight_uses(programs: Mapping[str, Sequence[Shaped]]) -> dict[str, set[Any]]:
    """Frozen weights that are looked up or multiplied by, and by which of these ops."""
    uses: dict[str, set[Any]] = {}
    for shaped in programs.values():
        plain = next(candidate for candidate in shaped if candidate.program.kind == PLAIN)
        for node in plain.program.stored:
            readers = {user.target for user in node.users} & {ops.linear, ops.embedding}
            if slot_of(node).role is Role.FROZEN and readers:
                uses.setdefault(slot_of(node).name, set()).update(readers)
    return uses


def tied_weights(programs: Mapping[str, Sequence[Shaped]]) -> tuple[str, ...]:
    """Weights that are both looked up and multiplied by: a language model's embedding and its last layer."""
    return tuple(sorted(name for name, readers in weight_uses(programs).items() if len(readers) > 1))


def _address(model: nn.Module, name: str) -> int:
    """Return the address of the parameter of a turned weight: Conv1D stores it transposed."""
    return model.get_parameter(name).data_ptr()

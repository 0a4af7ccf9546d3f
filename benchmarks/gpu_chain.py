"""The export's dual programs as a chain that runs with the weights of a large model, on any device.

Blocks of a model are alike, so one block's programs are traced, on a model of two blocks, and all blocks run them with
their own weights: working memory is that of one block, however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpu_models import INPUTS, TASK, Case, Shape, untouched
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from edge_client.bundle.manifest import DUAL, ENTER, PLAIN
from export.dual.builder import build
from export.dual.programs import Program
from export.graph import ops
from export.graph.capture import capture
from export.graph.segments import split
from export.graph.slots import Role, Slot, slot_of
from export.lower.torchscript.weights import Int4

aten = torch.ops.aten


@dataclass
class Link:
    """A program of the chain with the weights of its own block."""

    program: Program
    values: dict[Slot, Any]
    names: dict[str, str]
    """Trainable tensor in the traced block -> in this one."""
    device: str

    def run(self, state: dict[str, Tensor], direction: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        values = [self._value(slot_of(node), state, direction or {}) for node in self.program.placeholders]
        results = _OnDevice(self.program.graph, self.device).run(*values)
        return dict(zip((self._named(output) for output in self.program.outputs), results, strict=True))

    def _value(self, slot: Slot, state: dict[str, Tensor], direction: dict[str, Tensor]) -> Any:
        if slot.role is Role.DIRECTION:  # a client draws one for each example; here all take the same
            v = direction[self.names[slot.name]]
            return v.expand(len(self.values[_WEIGHTS]), *v.shape).contiguous()
        return state[slot.name] if slot.role in (Role.STATE, Role.TANGENT) else self.values[slot]

    def _named(self, output: str) -> str:
        return "g:" + self.names[output[2:]] if output.startswith("g:") else output

    def moving(self) -> list[str]:
        slots = [slot_of(node) for node in self.program.placeholders]
        return [self.names[slot.name] for slot in slots if slot.role is Role.DIRECTION]

    def tensors(self) -> list[Tensor]:
        parts = [value.tensors() if isinstance(value, Int4) else [value] for value in self.values.values()]
        return [tensor for tensors in parts for tensor in tensors]


_WEIGHTS = Slot(Role.EXAMPLE_WEIGHT, "example_weight")
_TRACED = 1
"""The block whose programs all blocks run; the norm that it begins with may be that of the block before."""
_BLOCK = re.compile(r"(\.layers?\.)(\d+)\.")


def build_chain(case: Case, first: int) -> list[Link]:
    """Each block's weights with the program that all blocks share."""
    kinds = [PLAIN if i < first else ENTER if i == first else DUAL for i in range(case.shape.config.num_hidden_layers)]
    traced = _programs(case.shape, kinds)
    known = {name: tensor.to(case.device) for name, tensor in traced.constants.items()}
    known |= dict(zip((*INPUTS, "labels"), case.inputs, strict=True))
    known[_WEIGHTS.name] = torch.full((case.shape.batch,), 1 / case.shape.batch, device=case.device)
    return [
        _link(case, traced.embed, known),
        _link(case, traced.first, known),
        *(_link(case, traced.block[kind], known, i - _TRACED) for i, kind in enumerate(kinds) if i > 0),
        _link(case, traced.head, known, len(kinds) - 1 - _TRACED),
    ]


@dataclass
class _Traced:
    embed: Program
    first: Program
    block: dict[str, Program]
    head: Program
    constants: dict[str, Tensor]


@unset_fake_temporarily()
def _programs(shape: Shape, kinds: Sequence[str]) -> _Traced:
    """The export's programs for a model of two blocks of the same shape: blocks are alike, so one is traced."""
    template = untouched(shape, "eager", layers=2)
    roles = {True: Role.HEAD, False: Role.ADAPTER}
    slots = {
        parameter.data_ptr(): Slot(roles[".modules_to_save." in name], name)
        for name, parameter in template.named_parameters()
        if parameter.requires_grad
    }
    examples = {name: torch.ones(shape.batch, shape.length, dtype=torch.int64) for name in INPUTS}
    captured = capture(template, TASK, {**examples, "labels": torch.zeros(shape.batch, dtype=torch.int64)}, slots)
    embed, first, block, head = split(captured, 2, range(2))
    own = {name for name, _ in (*template.named_parameters(), *template.named_buffers())}
    return _Traced(
        build(embed, PLAIN, 1),
        build(first, kinds[0], 1),
        {kind: build(block, kind, 1) for kind in dict.fromkeys(kinds)},
        build(head, DUAL, 1),
        {name: tensor for name, tensor in captured.stored.items() if name not in own},
    )


def _link(case: Case, program: Program, known: dict[str, Tensor], shift: int = 0) -> Link:
    """The program with the weights of blocks so much further on than those that it was traced with."""
    names: dict[str, str] = {}
    values: dict[Slot, Any] = {_WEIGHTS: known[_WEIGHTS.name]}
    for slot in (slot_of(node) for node in program.placeholders):
        if slot.role in (Role.STATE, Role.TANGENT):
            continue
        names[slot.name] = _BLOCK.sub(lambda found: f"{found[1]}{int(found[2]) + shift}.", slot.name)
        if slot.role is not Role.DIRECTION:
            values[slot] = known[slot.name] if slot.name in known else _weight(case.model, names[slot.name])
    return Link(program, values, names, case.device)


def _weight(model: nn.Module, name: str) -> Any:
    path, _, leaf = name.rpartition(".")
    value = getattr(model.get_submodule(path), leaf)
    return value.detach() if isinstance(value, Tensor) else value


class _OnDevice(fx.Interpreter):
    """Runs a program with 4-bit weights, on one device, wherever it was traced; values go when nobody needs them."""

    def __init__(self, graph: fx.GraphModule, device: str) -> None:
        super().__init__(graph)
        self.device = torch.device(device)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is ops.linear and isinstance(args[1], Int4):
            return args[1].product(args[0])
        if target is aten.to.device:
            args = (args[0], self.device, *args[2:])
        moved = {"device": self.device} if "device" in kwargs else {}
        return super().call_function(target, args, {**kwargs, **moved})

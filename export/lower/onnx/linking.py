"""Link a chain's segments to one model: their nodes one behind the other, with weights where the segments have them.

A call of a session has a price, and threads that rest between two calls have to be woken: for one token of 32 segments
both cost more than the products do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from edge_client.bundle.manifest import ProgramSpec
from export.lower.target import STATE, linked_tensors

_CONSTANT = "c."
"""The prefix of constants, which are named by their content, so that segments share them."""
_LOCATION = "location"


class _Chain:
    """A model under construction, and its values by the names that programs give them."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.infos: dict[str, ValueInfoProto] = {}
        self.state = ""

    def add(self, number: int, program: ProgramSpec, model: ModelProto, folder: PurePosixPath) -> None:
        graph, prefix = model.graph, f"s{number}."
        names = {"": ""}
        for spec, info in zip(program.inputs, graph.input, strict=True):
            names[info.name] = self.state if spec.name == STATE else f"in.{spec.name}"
            self.infos.setdefault(f"in.{spec.name}", info)
        for spec, info in zip(program.outputs, graph.output, strict=True):
            names[info.name] = f"{prefix}{info.name}" if spec.name == STATE else f"out.{spec.name}"
            self.infos.setdefault(f"out.{spec.name}", info)
            self.state = names[info.name] if spec.name == STATE else self.state
        for tensor in graph.initializer:
            name = tensor.name
            names[name] = name if name.startswith(_CONSTANT) else f"{prefix}{name}"
            tensor.name = names[name]
            for entry in tensor.external_data:
                if entry.key == _LOCATION:
                    entry.value = (folder / entry.value).as_posix()
            self.initializers.setdefault(tensor.name, tensor)
        for node in graph.node:
            node.name = f"{prefix}{node.name}"
            for values in (node.input, node.output):
                values[:] = [names.get(value, f"{prefix}{value}") for value in values]
            self.nodes.append(node)

    def info(self, kind: str, name: str) -> ValueInfoProto:
        info = ValueInfoProto()
        info.CopyFrom(self.infos[f"{kind}.{name}"])
        info.name = f"{kind}.{name}"
        return info


def link(programs: Sequence[tuple[ProgramSpec, bytes]]) -> bytes:
    """Link the models of a chain to one, for the folder `onnx/`."""
    chain, models = _Chain(), [ModelProto.FromString(content) for _, content in programs]
    for number, ((program, _), model) in enumerate(zip(programs, models, strict=True)):
        chain.add(number, program, model, PurePosixPath(*PurePosixPath(program.file).parts[1:-1]))
    inputs, outputs = linked_tensors([program for program, _ in programs])
    graph = helper.make_graph(
        chain.nodes,
        "program",
        [chain.info("in", spec.name) for spec in inputs],
        [chain.info("out", spec.name) for spec in outputs],
        list(chain.initializers.values()),
    )
    last = models[-1]
    linked = helper.make_model(
        graph, opset_imports=last.opset_import, ir_version=last.ir_version, producer_name=last.producer_name
    )
    return bytes(linked.SerializeToString(deterministic=True))

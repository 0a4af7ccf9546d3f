"""Builds one ONNX model: nodes, constants, and weights that lie in an external file shared by a segment's programs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import fx

from edge_client.arrays import Array
from export.graph.slots import value_of
from export.lower.onnx.passes.fusing import fuse, fuse_alone
from export.lower.onnx.passes.order import delay
from export.lower.onnx.passes.reshapes import join
from export.lower.onnx.passes.scales import RowScales, carry

Operand = str | fx.Node | float | Array | None
"""A value by name, a node's value, a constant, or an optional input that is left out."""

DTYPES: Mapping[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.bool: TensorProto.BOOL,
}
NUMPY: Mapping[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.bool: np.bool_,
}
MICROSOFT = "com.microsoft"
_DOMAINS = {"": 21, MICROSOFT: 1}
_IR_VERSION = 10
_PAGE = 4096
"""Large weights start at a page, so that a runtime can use them where the file is mapped."""
_LINE = 64


@dataclass(frozen=True)
class WeightReference:
    """The place of an array in an external file."""

    name: str
    file: str
    offset: int
    size: int
    dtype: int
    shape: tuple[int, ...]

    def slice(self, start: int, stop: int) -> WeightReference:
        """Return some of the rows."""
        if (start, stop) == (0, self.shape[0]):
            return self
        row = self.size // self.shape[0]
        return replace(
            self,
            name=f"{self.name}.{start}",
            offset=self.offset + start * row,
            size=(stop - start) * row,
            shape=(stop - start, *self.shape[1:]),
        )


class WeightFile:
    """Arrays one after the other; equal names are stored once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._content = bytearray()
        self._known: dict[str, WeightReference] = {}

    def add(self, name: str, make: Callable[[], Array]) -> WeightReference:
        if name not in self._known:
            array = np.ascontiguousarray(make())
            self._content.extend(bytes(-len(self._content) % (_PAGE if array.nbytes >= _PAGE else _LINE)))
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            self._known[name] = WeightReference(name, self.file, len(self._content), array.nbytes, dtype, array.shape)
            self._content.extend(array.reshape(-1).view(np.uint8).data)
        return self._known[name]

    def content(self) -> bytes:
        return bytes(self._content)


class Graph:
    """An ONNX graph under construction; values are names."""

    def __init__(self) -> None:
        self.values: dict[fx.Node, str | list[str]] = {}
        """The value of each translated node; several for a node that returns a tuple."""
        self.notes: dict[Any, Any] = {}
        """The notes of translation rules from one node to another, such as an activation's digits."""
        self.scales = RowScales()
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The known shapes, by the values' names."""
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._scope = ""
        self._count = 0

    def enter(self, scope: str) -> None:
        """Name the coming values after the node that they are computed for."""
        self._scope, self._count = scope, 0

    def op(self, kind: str, *inputs: Operand, domain: str = "", **attributes: Any) -> str:
        return self.ops(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(self, kind: str, *inputs: Operand, outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        names = [self.name(operand) for operand in inputs]
        results = [f"{self._scope}.{self._count + i}" for i in range(outputs)]
        self._count += outputs
        self._nodes.append(helper.make_node(kind, names, results, name=results[0], domain=domain, **attributes))
        return results

    def name(self, operand: Operand) -> str:
        if operand is None:
            return ""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, fx.Node):
            value = self.values[operand]
            assert isinstance(value, str), f"{operand} is a tuple"
            return value
        return self.constant(np.asarray(operand, np.float32) if isinstance(operand, float) else np.asarray(operand))

    def constant(self, array: Array) -> str:
        digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()[:16]
        name = f"c.{digest}"
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def reshape(self, operand: Operand, shape: Sequence[int]) -> str:
        name = self.op("Reshape", operand, self.integers(*shape))
        if min(shape, default=0) >= 0:
            self.shapes[name] = tuple(shape)
        return name

    def external(
        self, reference: WeightReference, alias: str = "", dtype: int | None = None, shape: Sequence[int] | None = None
    ) -> str:
        """Return a weight in an external file; the same bytes may be read under an alias as another type or shape."""
        name = reference.name + alias
        if name not in self._initializers:
            tensor = TensorProto(
                name=name,
                data_type=reference.dtype if dtype is None else dtype,
                dims=reference.shape if shape is None else shape,
                data_location=TensorProto.EXTERNAL,
            )
            place = {"location": reference.file, "offset": reference.offset, "length": reference.size}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            self._initializers[name] = tensor
        return name

    def model(self, inputs: Sequence[fx.Node], results: Sequence[fx.Node], *, fused: bool = False) -> bytes:
        """Inputs and outputs are called in0, in1, … and out0, …: blocks of the same structure give the same bytes.

        `fused`: with operators that are ONNX Runtime's own wherever it has them, as one row needs.
        """
        computed = [self.name(node) for node in results]
        carry(self._nodes, self.scales, computed)
        self._learn_shapes()
        join(self._nodes, self.shapes, computed)
        fusing = fuse if fused else fuse_alone
        fusing(self._nodes, self._initializers, self.shapes, computed)
        delay(self._nodes, {*self._initializers, *(f"in{i}" for i in range(len(inputs)))})
        outputs = self._name_outputs(computed)
        used = {name for node in self._nodes for name in node.input}
        graph = helper.make_graph(
            self._nodes,
            "program",
            [_described(f"in{i}", node) for i, node in enumerate(inputs)],
            [_described(name, node) for name, node in zip(outputs, results, strict=True)],
            [tensor for name, tensor in self._initializers.items() if name in used],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in _DOMAINS.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="spry")
        return bytes(model.SerializeToString(deterministic=True))

    def _learn_shapes(self) -> None:
        for node, name in self.values.items():
            if isinstance(name, str) and isinstance(node.meta.get("val"), torch.Tensor):
                self.shapes[name] = tuple(value_of(node).shape)

    def _name_outputs(self, values: list[str]) -> list[str]:
        """Rename the values that are results; what is no node's own output is copied."""
        computed = {name for node in self._nodes for name in node.output}
        rename: dict[str, str] = {}
        for i, value in enumerate(values):
            if value in computed and value not in rename:
                rename[value] = f"out{i}"
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [rename.get(name, name) for name in names]
        for i, value in enumerate(values):
            if rename.get(value) != f"out{i}":
                source = rename.get(value, value)
                self._nodes.append(helper.make_node("Identity", [source], [f"out{i}"], name=f"out{i}"))
        return [f"out{i}" for i in range(len(values))]


def _described(name: str, node: fx.Node) -> ValueInfoProto:
    value = value_of(node)
    return helper.make_tensor_value_info(name, DTYPES[value.dtype], list(value.shape))

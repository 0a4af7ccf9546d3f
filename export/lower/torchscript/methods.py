"""A segment's programs as the methods of one TorchScript module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from export.dual.programs import Program
from export.graph import ops
from export.graph.slots import slot_of, value_of
from export.lower.target import Precision
from export.lower.torchscript.weights import FloatWeight, Weight, quantized_linear, quantized_table

aten = torch.ops.aten
native: Any = torch._C  # pyright: ignore[reportPrivateUsage] - what torch.jit.trace_module is made of

_LINEAR, _TABLE, _PLAIN = "linear", "table", "plain"
_USES: dict[Any, str] = {ops.linear: _LINEAR, ops.linear_t: _LINEAR, ops.embedding: _TABLE}
_FORMS: dict[str, Callable[[Tensor, Precision], Weight]] = {
    _LINEAR: quantized_linear,
    _TABLE: quantized_table,
    _PLAIN: lambda tensor, precision: FloatWeight(tensor),
}


class Methods:
    """Collects methods; weights become attributes of the module when a program first names them.

    The module is built by the parts of `torch.jit.trace_module`, in a compilation unit of its own: names in the file
    then do not depend on what else the process has traced.
    """

    def __init__(self, stored: Mapping[str, Tensor], precision: Precision) -> None:
        self._stored = stored
        self._precision: Precision = precision
        self._weights: dict[tuple[str, tuple[int, int] | None, str], Weight] = {}
        self._kept = 0
        self.module = native.ScriptModule("__torch__.Segment", native.CompilationUnit(), False)

    def add(self, name: str, program: Program) -> None:
        weights = {node: self._weight(node) for node in program.stored}
        inputs = tuple(torch.zeros(value_of(node).shape, dtype=value_of(node).dtype) for node in program.inputs)
        constants = {node: self._constant(node) for node in program.graph.graph.nodes if _is_constant(node)}

        def method(*values: Tensor) -> tuple[Tensor, ...]:
            return tuple(_PlainOps(program.graph, values[0], constants).run(*values, *weights.values()))

        names = [node.name for node in program.inputs]
        with torch.no_grad():
            self.module._create_method_from_trace(name, method, inputs, lambda value: "", True, False, names, False)

    def _weight(self, node: fx.Node) -> Weight:
        name, rows = slot_of(node).name, slot_of(node).rows
        uses = {_USES[user.target] if user.target in _USES and user.args[1] is node else _PLAIN for user in node.users}
        use = uses.pop() if len(uses) == 1 else _PLAIN
        if (name, rows, use) not in self._weights:
            weight = _FORMS[use](slot_of(node).of(self._stored[name]), self._precision)
            for tensor in weight.tensors():
                self._keep(tensor)
            self._weights[name, rows, use] = weight
        return self._weights[name, rows, use]

    def _constant(self, node: fx.Node) -> Tensor:
        """Computed before the trace, which would note the computation, on the CPU wherever the program runs."""
        assert callable(node.target)
        constant: Tensor = node.target(*node.args, **_unplaced(node.kwargs))
        self._keep(constant)
        return constant

    def _keep(self, tensor: Tensor) -> None:
        """Make a trace read the attribute where it meets this tensor."""
        self.module._register_attribute(f"t{self._kept}", native.TensorType.get(), tensor)
        self._kept += 1


class _PlainOps(fx.Interpreter):
    """Runs a program with stored weights in their forms, and without naming a device."""

    def __init__(self, graph: fx.GraphModule, on_device: Tensor, constants: Mapping[fx.Node, Tensor]) -> None:
        """New tensors are made like `on_device`; `constants` are those that are stored."""
        super().__init__(graph)
        self.extra_traceback = False
        self.on_device = on_device
        self.constants = constants
        self.node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if target in _PRODUCTS:
            return _PRODUCTS[target](args[1], _plain(args[0]))
        assert self.node is not None
        if self.node in self.constants:
            return self.constants[self.node]
        if target in _FILLED:
            shape = args[0] if target is aten.full.default else ()
            return self.on_device.new_full(shape, args[-1], dtype=value_of(self.node).dtype)
        if target is aten.to.device:
            x, _, dtype, *_ = args
            target, args = aten.to.dtype, (x, dtype)
        return super().call_function(target, self._tensors(target, _plain(args)), _unplaced(kwargs))

    def _tensors(self, target: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Numbers in the place of tensors, as in sub(1, x), become tensors: a trace would not keep them."""
        schema: Any = getattr(target, "_schema", None)
        types = [str(argument.type) for argument in schema.arguments] if schema else []
        return tuple(
            self.on_device.new_full((), value, dtype=_TYPES[type(value)])
            if kind == "Tensor" and type(value) in _TYPES
            else value
            for value, kind in zip_longest(args, types[: len(args)])
        )


def _is_constant(node: fx.Node) -> bool:
    return node.op == "call_function" and not node.all_input_nodes and node.target not in _FILLED


def _unplaced(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _PLACEMENT}


def _plain(arguments: Any) -> Any:
    """Stored tensors that are not frozen weights are used as they are."""
    return tree_map(lambda leaf: leaf.weight if isinstance(leaf, FloatWeight) else leaf, arguments)


_TYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float32}
_PLACEMENT = ("device", "layout", "pin_memory")
_FILLED = (aten.full.default, aten.scalar_tensor.default)
_PRODUCTS: dict[Any, Callable[[Weight, Tensor], Tensor]] = {
    ops.linear: lambda weight, x: weight.product(x),
    ops.linear_t: lambda weight, gradient: weight.transposed_product(gradient),
    ops.embedding: lambda weight, ids: weight.rows(ids),
}

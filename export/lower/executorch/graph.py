"""An edge program put together node by node.

A rewritten graph is already in core operators; `torch.export` and ExecuTorch's own way to its edge dialect would only
trace it some ten times more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from export.graph.editing import module_of

aten = torch.ops.aten

CONFIG = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)

_COPYING: dict[Any, Any] = {
    aten.view.default: aten.view_copy.default,
    aten.permute.default: aten.permute_copy.default,
    aten.slice.Tensor: aten.slice_copy.Tensor,
    aten.expand.default: aten.expand_copy.default,
    aten.unsqueeze.default: aten.unsqueeze_copy.default,
    aten.squeeze.dims: aten.squeeze_copy.dims,
    aten.select.int: aten.select_copy.int,
    aten.split_with_sizes.default: aten.split_with_sizes_copy.default,
}
"""The operators of this dialect, whose results never share memory with an operand."""


class EdgeGraph:
    """Inputs, stored tensors, calls, and finally the program."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()
        self.inputs: list[fx.Node] = []
        self.stored: dict[str, fx.Node] = {}
        self.state: dict[str, Tensor] = {}
        self._derived: dict[tuple[fx.Node, str], fx.Node] = {}

    def input(self, like: Tensor) -> fx.Node:
        node = self.graph.placeholder(f"input_{len(self.inputs)}")
        node.meta["val"] = self._fake(like)
        self.inputs.append(node)
        return node

    def constant(self, name: str, value: Tensor) -> fx.Node:
        """Return the placeholder of a stored tensor, one for each name; they come before the inputs."""
        if name not in self.stored:
            with self.graph.inserting_before(self.inputs[0]):
                node = self.graph.placeholder(f"stored_{len(self.stored)}")
            node.meta["val"] = self._fake(value)
            self.state[node.name] = value.detach().contiguous()
            self.stored[name] = node
        return self.stored[name]

    def number(self, value: float, dtype: torch.dtype = torch.float32) -> fx.Node:
        return self.constant(f"number {value!r} of {dtype}", torch.tensor(value, dtype=dtype))

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node of an aten operator; its result is contiguous, as all are in this dialect."""
        with self.mode, torch.no_grad():
            result = target(*fx.map_arg(args, _value), **fx.map_arg(kwargs, _value))
        node = self.graph.call_function(aten_to_edge(_COPYING.get(target, target)), args, kwargs)
        node.meta["val"] = pytree.tree_map(self._fake, tuple(result) if isinstance(result, list) else result)
        return node

    def once(self, node: fx.Node, what: str, make: Callable[[], fx.Node]) -> fx.Node:
        """Something derived from `node` that several users share."""
        key = (node, what)
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def part(self, source: fx.Node, index: int) -> fx.Node:
        node = self.graph.call_function(operator.getitem, (source, index))
        node.meta["val"] = source.meta["val"][index]
        return node

    def reshape(self, node: fx.Node, *shape: int) -> fx.Node:
        return node if tuple(_value(node).shape) == shape else self.call(aten.view.default, node, list(shape))

    def _fake(self, like: Tensor) -> Tensor:
        with self.mode:
            return torch.empty(tuple(like.shape), dtype=like.dtype)

    def program(self, results: Sequence[fx.Node]) -> ExportedProgram:
        """Return the program, each result a node of its own: none may be an input, a stored tensor or another one."""
        outputs: list[fx.Node] = []
        for node in results:
            own = node.op != "placeholder" and node not in outputs
            outputs.append(node if own else self.call(aten.clone.default, node))
        self.graph.output(tuple(outputs))
        for node in [*self.stored.values()]:
            if not node.users:
                del self.state[node.name]
                self.graph.erase_node(node)
        kept = [node for node in self.graph.find_nodes(op="placeholder") if node not in self.inputs]
        signature = ExportGraphSignature(
            [InputSpec(InputKind.BUFFER, TensorArgument(n.name), n.name, persistent=True) for n in kept]
            + [InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None) for n in self.inputs],
            [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in outputs],
        )
        verifier: Any = EXIREdgeDialectVerifier(edge_compile_config=CONFIG, class_only=True)
        return ExportedProgram(
            root=module_of(self.graph),
            graph=self.graph,
            graph_signature=signature,
            state_dict=self.state,
            range_constraints={},
            module_call_graph=[ModuleCallEntry("", _call_signature(len(self.inputs), len(outputs)))],
            example_inputs=None,
            constants={},
            verifiers=[verifier],
        )


def shapes_alone(program: ExportedProgram) -> ExportedProgram:
    """Return a program that takes and returns tensors of the same shapes and computes nothing."""
    edge = EdgeGraph()
    taken = set(program.graph_signature.user_inputs)
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in taken:
            edge.input(_value(node))
    given = [_value(node) for node in program.graph.output_node().args[0]]  # type: ignore[union-attr]
    return edge.program([edge.call(aten.full.default, list(one.shape), 0, dtype=one.dtype) for one in given])


def _call_signature(inputs: int, outputs: int) -> ModuleCallSignature:
    return ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure(((0,) * inputs, {})),
        out_spec=pytree.tree_structure((0,) * outputs),
    )


def _value(node: fx.Node) -> Any:
    return node.meta["val"]

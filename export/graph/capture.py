"""The plain forward of a model as one flat graph, with weights and inputs as named placeholders.

`capture` runs `torch.export` at the level of composite operators (linear, matmul, softmax, layer_norm stay whole) and
then normalizes: operators that do nothing are dropped, whatever depends on no input and no weight is computed once and
stored, and what models spell in several ways is put in one (`export.graph.rewrites`).
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.fx import config as tracing

from export.graph.captured import Captured
from export.graph.editing import module_of, share_equal_nodes, unwritten
from export.graph.rewrites import rewrite
from export.graph.slots import STORED, Role, Slot, slot_of, value_of
from export.tasks.task import ModelTask

aten = torch.ops.aten
tracing.do_not_emit_stack_traces = True  # nobody reads where a node was made; to find it is a quarter of a capture


class TaskForward(nn.Module):
    """Calls a Hugging Face model and computes the task's per-example losses."""

    def __init__(self, model: nn.Module, task: ModelTask, input_names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.input_names = input_names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *tokens, labels = inputs
        named = dict(zip(self.input_names, tokens, strict=True))
        logits = self.task.logits(self.model(**named))
        return self.task.judged(logits, labels, named["attention_mask"])


def capture(
    model: nn.Module,
    task: ModelTask,
    inputs: dict[str, Tensor],
    trainable: dict[int, Slot],
) -> Captured:
    """Trace `model` on `inputs` (the last one is the labels); `trainable` maps addresses of parameters to slots."""
    *tokens, _labels = inputs
    return captured(TaskForward(model, task, tuple(tokens)), inputs, trainable, results=2)


def captured(forward: nn.Module, inputs: dict[str, Tensor], trainable: dict[int, Slot], results: int) -> Captured:
    """Trace what calls a model, which it has under the name `model`; it gives so many tensors."""
    with torch.no_grad(), unwritten(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(forward.eval(), tuple(inputs.values()), strict=False)
    stored: dict[str, Tensor] = {}
    graph_module = program.graph_module
    user_inputs = iter(inputs)
    for node, spec in zip(
        [n for n in graph_module.graph.nodes if n.op == "placeholder"], program.graph_signature.input_specs, strict=True
    ):
        if spec.kind is InputKind.USER_INPUT:
            node.meta["slot"] = Slot(Role.INPUT, next(user_inputs))
            continue
        name = str(spec.target)
        tensor: Any = program.state_dict[name] if name in program.state_dict else program.constants[name]
        own = Slot(Role.FROZEN if spec.kind is InputKind.PARAMETER else Role.CONSTANT, name.removeprefix("model."))
        node.meta["slot"] = trainable.get(tensor.data_ptr(), own)
        if slot_of(node).role in STORED:
            stored[own.name] = tensor.detach()
    whole = Captured(module_of(graph_module.graph), stored)
    _drop_unused_outputs(whole.graph, outputs=results)
    normalize(whole)
    return whole


def _drop_unused_outputs(graph: fx.GraphModule, outputs: int) -> None:
    """Buffers that a model mutates are returned first by `torch.export`; only the results are wanted."""
    node = graph.graph.output_node()
    node.args = (tuple(node.args[0][-outputs:]),)  # type: ignore[index]


# --- normalization ---------------------------------------------------------------------------------------------------

_IDENTITIES = {
    aten.contiguous.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.detach.default,
    aten.detach_.default,
    aten.clone.default,
    aten.dropout.default,
    aten.feature_dropout.default,
}
_CASTS = {aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.type_as.default, aten._to_copy.default}
_NO_EFFECT = {aten._assert_tensor_metadata.default, aten._assert_async.msg, aten._assert_scalar.default}


def normalize(captured: Captured) -> None:
    graph = captured.graph.graph
    for node in list(graph.nodes):
        if node.target in _NO_EFFECT:
            graph.erase_node(node)
        elif node.target in _IDENTITIES or (
            node.target in _CASTS and value_of(node).dtype == value_of(node.args[0]).dtype
        ):
            _skip(node)
    _fold_constants(captured)
    rewrite(captured)
    share_equal_nodes(graph)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users and slot_of(node).role is not Role.INPUT:
            graph.erase_node(node)
    used = {slot_of(n).name for n in graph.nodes if n.op == "placeholder"}
    captured.stored = {name: tensor for name, tensor in captured.stored.items() if name in used}
    graph.lint()
    captured.graph.recompile()


def _skip(node: fx.Node) -> None:
    """Remove a copy; readers of its layout may have to make one themselves."""
    for reader in node.users:
        if reader.target is aten.view.default:
            reader.target = aten.reshape.default
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    node.graph.erase_node(node)


def _fold_constants(captured: Captured) -> None:
    """Evaluate what depends on no input and no parameter: positions, causal masks, rotary tables."""
    graph = captured.graph.graph
    known: dict[fx.Node, Any] = {}

    def lookup(argument: fx.Node) -> Any:
        return known[argument]

    for node in list(graph.nodes):
        if node.op == "placeholder":
            if slot_of(node).role is Role.CONSTANT:
                known[node] = captured.stored[slot_of(node).name]
        elif node.op == "call_function" and all(argument in known for argument in node.all_input_nodes):
            known[node] = node.target(*fx.map_arg(node.args, lookup), **fx.map_arg(node.kwargs, lookup))
    first = next(iter(graph.nodes))
    for node, computed in known.items():
        if node.op == "placeholder" or not isinstance(computed, Tensor):
            continue
        if all(user in known for user in node.users):
            continue
        value = computed.contiguous()
        name = f"constant.{_digest(value)}"
        with graph.inserting_before(first):
            constant = graph.placeholder(node.name + "_constant")
        constant.meta = {"val": node.meta["val"], "slot": Slot(Role.CONSTANT, name)}
        captured.stored[name] = value
        node.replace_all_uses_with(constant, delete_user_cb=lambda user: user not in known)
    graph.eliminate_dead_code()


def _digest(value: Tensor) -> str:
    """Names a constant by its content, so that captures at several shapes agree on what they share."""
    bytes_of = value.cpu().reshape(-1).view(torch.uint8).numpy()  # NumPy has no bfloat16
    content = f"{value.dtype}{tuple(value.shape)}".encode() + bytes_of.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]

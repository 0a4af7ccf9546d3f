"""Find the units that are assigned to clients: the trainable tensors of one layer in the captured graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from edge_client.bundle.manifest import Parameter, Unit
from export.graph.bottlenecks import bottlenecks, token_of
from export.graph.segments import SegmentGraph
from export.graph.slots import Role, slot_of, value_of


def find_units(segments: list[SegmentGraph]) -> list[Unit]:
    """Units in model order."""
    members: dict[str, dict[str, Parameter]] = {}
    users: dict[str, dict[str, None]] = {}
    owner: dict[str, str] = {}
    products: dict[str, fx.Node] = {}
    for segment in segments:
        products |= bottlenecks(segment.graph)
        for node in segment.graph.graph.nodes:
            if node.op != "placeholder" or slot_of(node).role is not Role.ADAPTER:
                continue
            name = slot_of(node).name
            unit = owner.setdefault(name, _layer(node))
            members.setdefault(unit, {})[name] = Parameter(name, tuple(value_of(node).shape))
            users.setdefault(unit, {})[segment.name] = None
    return [_unit(name, tuple(users[name]), tuple(own.values()), products) for name, own in members.items()]


def _unit(
    name: str, segments: tuple[str, ...], parameters: tuple[Parameter, ...], products: Mapping[str, fx.Node]
) -> Unit:
    if any(parameter.name not in products for parameter in parameters):
        return Unit(name, segments, parameters)
    (parameter,) = parameters
    return Unit(name, segments, parameters, "bottleneck", token_of(products[parameter.name]))


def find_head(segments: list[SegmentGraph]) -> list[Parameter]:
    """Return the task layer's parameters."""
    return [
        Parameter(slot_of(node).name, tuple(value_of(node).shape))
        for segment in segments
        for node in segment.graph.graph.nodes
        if node.op == "placeholder" and slot_of(node).role is Role.HEAD
    ]


def logits_layer(head: SegmentGraph) -> fx.Node | None:
    """Return the linear layer of the head that gives the logits; what it is given are the features."""
    layers = [node for node in head.graph.graph.nodes if node.target is torch.ops.aten.linear.default]
    of_head = [node for node in layers if _role(node.args[1]) is Role.HEAD]
    return of_head[-1] if of_head else None


def bias_of(layer: fx.Node) -> fx.Node | None:
    """Find what is added to a trained layer's product: the graph has it apart."""
    added = [other for user in layer.users if user.target is torch.ops.aten.add.Tensor for other in user.args]
    return next((node for node in added if isinstance(node, fx.Node) and _role(node) is Role.HEAD), None)


def _role(node: Any) -> Role | None:
    return slot_of(node).role if node.op == "placeholder" else None


_SLICE = re.compile(r"\.slice\([^)]*\)")
"""Modules called from a slice of a list carry it in their path."""
_PARTS_OF_AN_ADAPTER = ("lora_A", "lora_B", "default", "base_layer")


def _layer(placeholder: fx.Node) -> str:
    """Return the path of the layer whose code uses the parameter first, without PEFT's own parts."""
    user = min(placeholder.users, key=lambda node: list(placeholder.graph.nodes).index(node))
    stack = list((user.meta.get("nn_module_stack") or {}).values())
    path = (_SLICE.sub("", stack[-1][0]) if stack else slot_of(placeholder).name).split(".")
    while path and path[-1] in _PARTS_OF_AN_ADAPTER:
        path.pop()
    return ".".join(path).removeprefix("model.base_model.model.")

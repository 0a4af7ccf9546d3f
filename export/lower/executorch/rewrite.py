"""A program's graph written again in the formulations that XNNPACK's delegate takes.

What spans several ops happens on the graph first; then every op goes through its formulation, traced down to core
operators. The operators of `export.graph.ops` stay whole: how they are computed is decided with their weights (`edge`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from export.dual.programs import Program
from export.graph import ops
from export.graph.editing import clean, copy_of, module_of, trace
from export.graph.labels import look_up_labels
from export.graph.slots import STORED, slot_of, value_of
from export.lower.executorch.formulation import TINY, plain
from export.lower.executorch.formulations import FORMULATIONS
from export.lower.target import Precision

aten = torch.ops.aten

_LARGEST_FOLDED = 1 << 18
"""Numbers in a constant that is computed here rather than on the device."""
_MOVED_PER_WEIGHT, _LARGE = 8, 1 << 20
"""Numbers that stacking values and tangents moves for each of the weight's, and weights that are not packed twice."""
_COPIES = (aten.clone.default, aten.contiguous.default, aten.alias.default)


def rewritten(
    program: Program, stored: Mapping[str, Tensor], precision: Precision = "none"
) -> tuple[fx.GraphModule, dict[str, Tensor]]:
    """Rewrite the graph in core operators; return it with the constants that were computed for it."""
    graph = copy_of(program.graph.graph)
    source = module_of(graph)
    if precision == "int8" and program.directions > 1:
        _small_products_apart(graph)
    look_up_labels(graph)
    _views_for_look_ups(graph, stored)
    _error_functions(graph)
    _needless_expansions(graph)
    graph.eliminate_dead_code()
    inputs = [(slot_of(node), value_of(node)) for node in graph.find_nodes(op="placeholder")]

    def function(*values: Tensor) -> list[Tensor]:
        results = _Formulator(source, garbage_collect_values=False).run(*values)
        return [plain(result) for result in results]

    with torch.no_grad():
        result = trace(function, inputs, below_autograd=True)
    for node in list(result.graph.nodes):
        if node.target in _COPIES or _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            result.graph.erase_node(node)
    clean(result)
    return result, _fold(result, stored)


class _Formulator(fx.Interpreter):
    """Runs a graph op by op through the formulations."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        formulation = FORMULATIONS.get(target)
        if formulation is not None:
            return formulation(*args, **kwargs)
        if getattr(target, "__name__", "") == "getitem":
            return args[0][args[1]]
        return target(*map_aggregate(args, plain), **map_aggregate(dict(kwargs), plain))


def _changes_nothing(node: fx.Node) -> bool:
    args = list[Any](node.args)
    if node.target in (aten.view.default, aten.expand.default):
        return value_of(node).shape == value_of(args[0]).shape
    return node.target is aten.permute.default and list(args[1]) == list(range(len(args[1])))


# --- what spans several ops -------------------------------------------------------------------------------------------


def _small_products_apart(graph: fx.Graph) -> None:
    """Values and tangents multiplied apart where stacking them moves far more than a second packed weight takes."""
    for split in graph.find_nodes(op="call_function", target=aten.split_with_sizes.default):
        both = split.args[0]
        if both.target is not ops.linear or len(both.users) != 1 or both.args[0].target is not aten.cat.default:
            continue
        (stacked, weight), rows = both.args, split.args[1]
        parts = stacked.args[0]
        moved = value_of(both).numel() + value_of(stacked).numel()
        if list(stacked.args[1:]) not in ([], [0]) or [value_of(part).shape[0] for part in parts] != rows:
            continue
        if not _MOVED_PER_WEIGHT * value_of(weight).numel() <= moved or value_of(weight).numel() >= _LARGE:
            continue
        with graph.inserting_before(both):
            products = [graph.call_function(ops.linear, (part, weight)) for part in parts]
        for part in list(split.users):
            part.replace_all_uses_with(products[part.args[1]])


def _views_for_look_ups(graph: fx.Graph, stored: Mapping[str, Tensor]) -> None:
    """x[i, j] with i and j counting up along dimensions of their own is a view of x: how masks are broadcast."""
    for node in graph.find_nodes(op="call_function", target=aten.index.Tensor):
        x, indices = node.args
        shape = [1] * value_of(node).dim()
        for size, index in zip(value_of(x).shape, indices, strict=False):
            values = stored.get(slot_of(index).name) if index is not None and index.op == "placeholder" else None
            if values is None or values.numel() != size or not torch.equal(values.flatten(), torch.arange(size)):
                break
            if size > 1:
                shape[values.dim() - 1 - list(values.shape[::-1]).index(size) + len(shape) - values.dim()] = size
        else:
            ordered = [size for size in shape if size > 1] == [size for size in value_of(x).shape if size > 1]
            if ordered and len(indices) == value_of(x).dim() and shape == list(value_of(node).shape):
                node.target, node.args = aten.view.default, (x, shape)


_ROOT_HALF = math.sqrt(0.5)


def _error_functions(graph: fx.Graph) -> None:
    """a·erf(x·√½) + b out of the normal distribution gelu(x) / x: XNNPACK has gelu, but no erf."""
    for node in graph.find_nodes(op="call_function", target=aten.erf.default):
        scaled = node.args[0]
        if scaled.target is not aten.mul.Tensor or not math.isclose(scaled.args[1], _ROOT_HALF, rel_tol=1e-6):
            with graph.inserting_before(node):
                x = graph.call_function(aten.mul.Tensor, (scaled, math.sqrt(2)))
        else:
            x = scaled.args[0]
        last, factor, shift = _affine(node)
        phi = _normal(graph, x)
        with graph.inserting_before(last):
            if 2 * factor != 1:
                phi = graph.call_function(aten.mul.Tensor, (phi, 2 * factor))
            if shift != factor:
                phi = graph.call_function(aten.add.Tensor, (phi, shift - factor))
        last.replace_all_uses_with(phi)


def _affine(node: fx.Node) -> tuple[fx.Node, float, float]:
    """Follow `node` through multiplications and additions of numbers: the last node is factor * node + shift."""
    last, factor, shift = node, 1.0, 0.0
    while len(last.users) == 1:
        user = next(iter(last.users))
        numbers = [part for part in user.args if isinstance(part, int | float)]
        if len(numbers) != 1 or user.target not in (aten.mul.Tensor, aten.add.Tensor) or user.kwargs:
            break
        if user.target is aten.mul.Tensor:
            factor, shift = factor * numbers[0], shift * numbers[0]
        else:
            shift += numbers[0]
        last = user
    return last, factor, shift


def _normal(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """Phi(x) = gelu(x) / x, moved off zero; every gelu of the same x is then this one."""
    others = [user for user in x.users if user.target is aten.gelu.default and not user.kwargs]
    with graph.inserting_after(x):
        moved = graph.call_function(aten.add.Tensor, (x, TINY))
    with graph.inserting_after(moved):
        gelu = graph.call_function(aten.gelu.default, (moved,))
    with graph.inserting_after(gelu):
        phi = graph.call_function(aten.div.Tensor, (gelu, moved))
    for other in others:
        other.replace_all_uses_with(gelu)
    return phi


_BROADCASTING = {
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.where.self, aten.where.ScalarOther,
    aten.where.ScalarSelf, aten.where.Scalar, aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default,
}  # fmt: skip


def _needless_expansions(graph: fx.Graph) -> None:
    """Leave out an `expand` whose users broadcast anyway, as they do where a mask meets the scores."""
    for node in graph.find_nodes(op="call_function", target=aten.expand.default):
        source = node.args[0]
        if _may_be(node, tuple(value_of(source).shape), {}):
            node.replace_all_uses_with(source)


def _may_be(node: fx.Node, shape: tuple[int, ...], smaller: dict[fx.Node, tuple[int, ...]]) -> bool:
    """Tell whether everything after `node` comes out the same if it has this smaller shape."""
    smaller[node] = shape
    for user in node.users:
        if user.target not in _BROADCASTING:
            return False
        sources = [smaller.get(source) or tuple(value_of(source).shape) for source in user.all_input_nodes]
        result = tuple(torch.broadcast_shapes(*sources))
        if result != tuple(value_of(user).shape) and not _may_be(user, result, smaller):
            return False
    return True


# --- constants --------------------------------------------------------------------------------------------------------


def _fold(module: fx.GraphModule, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Compute what depends on stored tensors alone; the results by the name of the node that stands for them."""
    graph = module.graph
    known: dict[fx.Node, Tensor] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and slot_of(node).role in STORED:
            known[node] = stored[slot_of(node).name]
        elif node.op == "call_function" and _foldable(node, known):
            with torch.no_grad():
                known[node] = node.target(*fx.map_arg(node.args, known.get), **fx.map_arg(node.kwargs, known.get))
    folded: dict[str, Tensor] = {}
    for node, value in known.items():
        if node.op != "placeholder" and any(user not in known for user in node.users):
            folded[node.name] = value.contiguous()
    return folded


def _foldable(node: fx.Node, known: Mapping[fx.Node, Tensor]) -> bool:
    value = node.meta.get("val")
    return (
        isinstance(value, Tensor)
        and value.numel() <= _LARGEST_FOLDED
        and node.target not in (ops.linear, ops.linear_t, ops.embedding)
        and all(source in known for source in node.all_input_nodes)
    )

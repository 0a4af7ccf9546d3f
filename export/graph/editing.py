"""Small operations on FX graphs that several stages need: tracing, cleaning, sharing equal nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._subclasses import FakeTensorMode
from torch.fx import _lazy_graph_module as lazy
from torch.fx.experimental.proxy_tensor import make_fx

from export.graph.slots import Slot

aten = torch.ops.aten

_ALIASES = {aten.alias.default, aten.detach.default, aten.detach_.default, aten.lift_fresh_copy.default}


def unwritten() -> AbstractContextManager[None]:
    """Trace without writing code until a graph runs: most graphs are only read and rewritten."""
    return lazy._use_lazy_graph_module(True)  # pyright: ignore[reportPrivateUsage]


def module_of(graph: fx.Graph) -> fx.GraphModule:
    """Make a module of a graph, without code until somebody runs it."""
    return lazy._LazyGraphModule({}, graph)  # pyright: ignore[reportPrivateUsage]


def trace(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[tuple[Slot, Tensor]],
    *,
    below_autograd: bool = False,
) -> fx.GraphModule:
    """Trace `function` to a graph over tensors like `inputs`, its placeholders carrying their slots.

    Composite operators stay whole unless the function differentiates (`below_autograd`), which records the operators
    of the backward pass, already decomposed to the core set.
    """
    mode = FakeTensorMode()
    fakes = [_fake(mode, value) for _, value in inputs]
    decompositions = _core() if below_autograd else None
    with mode, unwritten():
        tracer = make_fx(function, decomposition_table=decompositions, pre_dispatch=not below_autograd)
        graph_module = tracer(*fakes)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    for node, (slot, _) in zip(placeholders, inputs, strict=True):
        node.meta["slot"] = slot
    clean(graph_module)
    return graph_module


@cache
def _core() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions to the core set; torch lists them slowly, by going through all operators."""
    return dict(core_aten_decompositions())


def _fake(mode: FakeTensorMode, value: Tensor) -> Tensor:
    """Return a tensor without data, whatever mode `value` came from."""
    with mode:
        return torch.empty(tuple(value.shape), dtype=value.dtype)


def copy_of(graph: fx.Graph) -> fx.Graph:
    """Copy a graph with what is known of its nodes."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, _Copies()))
    return copy


class _Copies(dict[fx.Node, fx.Node]):
    """The nodes that `graph_copy` maps; a copied node keeps what is known of it."""

    def __setitem__(self, node: fx.Node, copy: fx.Node) -> None:
        copy.meta = dict(node.meta)
        super().__setitem__(node, copy)


def clean(graph_module: fx.GraphModule) -> None:
    """Drop what has no effect and compute equal things once."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    share_equal_nodes(graph)
    graph.eliminate_dead_code()
    graph.lint()
    graph_module.recompile()


def share_equal_nodes(graph: fx.Graph) -> None:
    """Common subexpressions once: masks and rotary tables are otherwise computed again and again."""
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        key = (node.target, repr(node.args), repr(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)

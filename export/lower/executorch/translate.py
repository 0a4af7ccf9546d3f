"""A rewritten graph as an edge program: its nodes one by one, its stored tensors in the precision asked for."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from export.graph import ops
from export.graph.slots import STORED, slot_of, value_of
from export.lower.executorch import products
from export.lower.executorch.graph import EdgeGraph
from export.lower.executorch.weights import Quantized, effective, quantize, quantize_table
from export.lower.target import Precision

aten = torch.ops.aten
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)


class StoredWeights:
    """The segment's tensors in the forms that its programs ask for, each computed once."""

    def __init__(self, stored: Mapping[str, Tensor], precision: Precision, tied: Collection[str] = ()) -> None:
        self.stored = stored
        self.precision: Precision = precision
        self.tied = tied
        self._linears: dict[str, Tensor | Quantized] = {}
        self._rows: dict[tuple[str, tuple[int, int]], Tensor | Quantized] = {}
        self._tables: dict[str, Tensor | Quantized] = {}

    def linear(self, name: str) -> Tensor | Quantized:
        if name not in self._linears:
            weight = self.stored[name]
            kind = effective(weight, self.precision)
            self._linears[name] = weight if kind == "none" else quantize(weight, kind)
        return self._linears[name]

    def rows(self, name: str, rows: tuple[int, int]) -> Tensor | Quantized:
        """Return some rows of a product's weight, in buffers of their own: an edge program takes a buffer whole."""
        if (name, rows) not in self._rows:
            whole, part = self.linear(name), slice(*rows)
            self._rows[name, rows] = whole[part].clone() if isinstance(whole, Tensor) else whole.of_rows(part)
        return self._rows[name, rows]

    def table(self, name: str) -> Tensor | Quantized:
        """Round a tied table as the product's weight is first: the model has one weight, not two."""
        if name not in self._tables:
            table = self.stored[name]
            product = self.linear(name) if name in self.tied else table
            rounded = product if isinstance(product, Tensor) else product.float32
            self._tables[name] = quantize_table(rounded, self.precision) or table
            if name in self.tied:
                del self._linears[name]
        return self._tables[name]


def translated(source: fx.GraphModule, folded: Mapping[str, Tensor], weights: StoredWeights) -> ExportedProgram:
    return _Translator(source, folded, weights).program()


class _Translator:
    def __init__(self, source: fx.GraphModule, folded: Mapping[str, Tensor], weights: StoredWeights) -> None:
        self.source = source.graph
        self.folded = folded
        self.weights = weights
        self.edge = EdgeGraph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.biased = _biased(self.source, self._is_constant)

    def program(self) -> ExportedProgram:
        for node in self.source.find_nodes(op="placeholder"):
            if slot_of(node).role not in STORED:
                self.copies[node] = self.edge.input(value_of(node))
        results: tuple[fx.Node, ...] = self.source.output_node().args[0]  # type: ignore[assignment]
        needed = self._needed(results)
        for node in self.source.nodes:
            if node in needed and node.op == "call_function" and node not in self.biased.values():
                self.copies[node] = self._node(node)
        return self.edge.program([self._operand(node) for node in results])

    def _needed(self, results: tuple[fx.Node, ...]) -> set[fx.Node]:
        """List the nodes that the results depend on, up to inputs and constants."""
        needed: set[fx.Node] = set()
        pending = list(results)
        while pending:
            node = pending.pop()
            if node not in needed and not self._is_constant(node):
                needed.add(node)
                pending.extend(node.all_input_nodes)
        return needed

    def _is_constant(self, node: fx.Node) -> bool:
        return node.name in self.folded or (node.op == "placeholder" and slot_of(node).role in STORED)

    def _tensor(self, node: fx.Node) -> tuple[str, Tensor]:
        if node.name in self.folded:
            return f"folded {node.name}", self.folded[node.name]
        name = slot_of(node).name
        return name, self.weights.stored[name]

    def _operand(self, node: fx.Node) -> fx.Node:
        return self.edge.constant(*self._tensor(node)) if self._is_constant(node) else self.copies[node]

    def _node(self, node: fx.Node) -> fx.Node:
        if node in self.biased:
            product = self.biased[node]
            bias = next(part for part in node.all_input_nodes if part is not product)
            return self._linear(product, self._operand(bias))
        if node.target is ops.linear:
            return self._linear(node, None)
        if node.target is ops.linear_t:
            gradient, weight = node.args
            return products.linear_t(self.edge, self._operand(gradient), *self._weight(weight))  # type: ignore[arg-type]
        if node.target in (ops.embedding, aten.embedding.default):
            return self._looked_up(node)
        if node.target is operator.getitem:
            return self.edge.part(self.copies[node.args[0]], node.args[1])  # type: ignore[index, arg-type]
        args: tuple[Any, ...] = fx.map_arg(node.args, self._operand)  # type: ignore[assignment]
        if node.target in _ARITHMETIC:
            kind = torch.float32 if value_of(node).is_floating_point() else torch.int64
            args = tuple(self.edge.number(part, kind) if isinstance(part, int | float) else part for part in args)
        kwargs: dict[str, Any] = fx.map_arg(node.kwargs, self._operand)  # type: ignore[assignment]
        return self.edge.call(node.target, *args, **kwargs)

    def _linear(self, node: fx.Node, bias: fx.Node | None) -> fx.Node:
        x, weight = node.args
        operand, alone = self._operand(x), self._is_part(weight)  # type: ignore[arg-type]
        return products.linear(self.edge, operand, *self._weight(weight), bias, alone=alone)  # type: ignore[arg-type]

    def _looked_up(self, node: fx.Node) -> fx.Node:
        """Rows of a table, or of a product's weight."""
        of_product = node.target is aten.embedding.default
        ids, table = node.args[::-1] if of_product else node.args
        name, _ = self._tensor(table)  # type: ignore[arg-type]
        if of_product:
            return products.rows(self.edge, self._operand(ids), name, self.weights.linear(name))  # type: ignore[arg-type]
        return products.embedding(self.edge, self._operand(ids), name, self.weights.table(name))  # type: ignore[arg-type]

    def _is_part(self, node: fx.Node) -> bool:
        """Tell whether a weight is some rows of a larger one."""
        return node.name not in self.folded and slot_of(node).rows is not None

    def _weight(self, node: fx.Node) -> tuple[str, Tensor | Quantized]:
        """Return a product's weight, and what its constants are called after."""
        name, tensor = self._tensor(node)
        if node.name in self.folded:
            return name, tensor
        rows = slot_of(node).rows
        if rows is None:
            return name, self.weights.linear(name)
        return f"{name} from {rows[0]}", self.weights.rows(name, rows)


def _biased(graph: fx.Graph, is_constant: Any) -> dict[fx.Node, fx.Node]:
    """Additions of a stored vector to a frozen product that nothing else uses: one linear with a bias."""
    biased: dict[fx.Node, fx.Node] = {}
    for product in graph.find_nodes(op="call_function", target=ops.linear):
        add = next(iter(product.users))
        if len(product.users) != 1 or add.target is not aten.add.Tensor or add.kwargs or len(add.all_input_nodes) != 2:
            continue
        bias = next(part for part in add.all_input_nodes if part is not product)
        if is_constant(bias) and tuple(value_of(bias).shape) == (value_of(product).shape[-1],):
            biased[add] = product
    return biased

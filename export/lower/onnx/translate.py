"""Translates one program, with the weights of its segment."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx

from edge_client.bundle.manifest import DECODE, PREFILL
from export.dual.programs import Program
from export.errors import ExportError
from export.graph import ops
from export.graph.editing import copy_of, module_of
from export.graph.labels import look_up_labels
from export.graph.slots import STORED, Role, Slot, slot_of, value_of
from export.lower.onnx.encoding import encoding_of
from export.lower.onnx.file_blocks import FileBlocks
from export.lower.onnx.frozen import Float, Frozen
from export.lower.onnx.graph import Graph, WeightFile, WeightReference
from export.lower.onnx.rows import Rows8
from export.lower.onnx.rules import RULES
from export.lower.target import Precision
from export.model.kept import kept_blocks

aten = torch.ops.aten

_PRODUCTS = (ops.linear, ops.linear_t)
_LABELS = aten.embedding.default
"""Looks up rows of a product's weight (`export.graph.labels`)."""
_FROZEN = (*_PRODUCTS, ops.embedding, _LABELS)


class SegmentWeights:
    """The stored tensors of a segment, each written once, whatever the number of programs."""

    def __init__(
        self,
        programs: Sequence[Program],
        stored: Mapping[str, Tensor],
        precision: Precision,
        own: WeightFile,
        shared: Mapping[str, WeightFile],
        products: type[Rows8],
    ) -> None:
        self.stored = stored
        self.precision: Precision = precision
        self.products = products
        """The products for weights in 8 bits."""
        self.own = own
        self.shared = shared
        """Files of weights that another segment uses as well, the other way."""
        self._looked_up = _users(programs, (ops.embedding,))
        self._multiplied = _users(programs, _PRODUCTS)
        self._numbers: dict[str, int] = {}
        self._in_parts = {
            slot.name for program in programs for slot in map(slot_of, program.stored) if slot.rows is not None
        }
        self._frozen: dict[Slot, Frozen] = {}

    def frozen(self, slot: Slot) -> Frozen:
        """Translate a weight of the operators in `export.graph.ops`."""
        name = slot.name
        if slot not in self._frozen:
            weight = self.stored[name]
            multiplied = name in self._multiplied or name in self.shared
            kind = encoding_of(weight.shape, self.precision, embedding=not multiplied, products=self.products)
            if slot.role is not Role.FROZEN:
                kind = Float
            elif self.precision == "int4" and kept_blocks(weight) is not None:
                kind = FileBlocks
            rows = name in self._looked_up or name in self.shared or name in self._in_parts
            file = self.shared.get(name, self.own)
            self._frozen[slot] = kind(self._name(name), weight, file, rows=rows, own=self.own, part=slot.rows)
        return self._frozen[slot]

    def plain(self, slot: Slot) -> WeightReference:
        """Translate a bias, a norm's weight, a constant: as it is."""
        return self.own.add(self._name(slot.name), lambda: self.stored[slot.name].detach().numpy())

    def _name(self, name: str) -> str:
        """Name a weight without the segment's part, so that equal blocks give equal graphs."""
        if name in self.shared:
            return name
        return f"w{self._numbers.setdefault(name, len(self._numbers))}"


def _users(programs: Sequence[Program], targets: Collection[object]) -> set[str]:
    names: set[str] = set()
    for program in programs:
        for node in program.graph.graph.nodes:
            if node.target in targets:
                weight = node.args[1]
                assert isinstance(weight, fx.Node)
                names.add(slot_of(weight).name)
    return names


class Translator:
    """Translates one program node by node."""

    def __init__(self, program: Program, weights: SegmentWeights) -> None:
        graph = copy_of(program.graph.graph)
        look_up_labels(graph)
        graph.eliminate_dead_code()
        self.program = replace(program, graph=module_of(graph))
        self.weights = weights
        self.graph = Graph()
        self._apart: dict[fx.Node, list[fx.Node]] = {}
        """Values and tangents stacked for int8 products alone: these gain nothing by it, and copies are saved."""

    def translate(self) -> bytes:
        for i, node in enumerate(self.program.inputs):
            self.graph.values[node] = f"in{i}"
        for node in self.program.graph.graph.nodes:
            self.graph.enter(node.name)
            if node.op == "placeholder" and slot_of(node).role in STORED:
                if any(user.target not in _FROZEN or _operands(user)[1] is not node for user in node.users):
                    self.graph.values[node] = self.graph.external(self.weights.plain(slot_of(node)))
            elif node.op == "call_function":
                self._call(node)
        fused = self.program.kind in (PREFILL, DECODE)
        return self.graph.model(self.program.inputs, self.program.results, fused=fused)

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            self.graph.values[node] = self.graph.values[source][index]  # type: ignore[index]
        elif node.target in _FROZEN:
            self._frozen(node)
        elif node.target is aten.cat.default and self._stays_apart(node):
            self._apart[node] = list(node.args[0])  # type: ignore[arg-type]
        elif node.target is aten.split_with_sizes.default and isinstance(self.graph.values[_source(node)], list):
            self.graph.values[node] = self.graph.values[_source(node)]
        else:
            self.graph.values[node] = self._rule(node)

    def _rule(self, node: fx.Node) -> str | list[str]:
        rule = RULES.get(node.target)
        what = "has no translation"
        if rule is not None:
            try:
                return rule(self.graph, node, *node.args, **node.kwargs)
            except NotImplementedError as error:
                what = f"has a translation that does not cover {error}"
        raise ExportError(
            f"the op {node.target} of program {self.program.kind} of segment {self.program.segment} {what} to ONNX; "
            "add one to a module of export/lower/onnx/rules (a function of a few lines under @rule(op))"
        )

    def _frozen(self, node: fx.Node) -> None:
        x, weight = _operands(node)
        frozen = self.weights.frozen(slot_of(weight))
        if node.target in (ops.embedding, _LABELS):
            self.graph.values[node] = frozen.embedding(self.graph, x)
        elif x in self._apart:
            self.graph.values[node] = [frozen.linear(self.graph, part) for part in self._apart[x]]
        elif node.target is ops.linear_t:
            self.graph.values[node] = frozen.linear_t(self.graph, x)
        elif slot_of(weight).rows is not None and ops.linear_t in {user.target for user in weight.users}:
            self.graph.values[node] = frozen.linear_before_t(self.graph, x)
        else:
            self.graph.values[node] = frozen.linear(self.graph, x)

    def _stays_apart(self, cat: fx.Node) -> bool:
        """Tell whether a node stacks values and tangents like the dual rule of `spry::linear`; int8 products only."""
        parts, *axis = cat.args
        rows = [value_of(part).shape[0] for part in parts]  # type: ignore[union-attr]
        return axis in ([], [0]) and len(rows) == 2 and all(self._is_int8_pair(user, rows) for user in cat.users)

    def _is_int8_pair(self, product: fx.Node, rows: list[int]) -> bool:
        return (
            product.target is ops.linear
            and isinstance(self.weights.frozen(slot_of(product.args[1])), Rows8)  # type: ignore[arg-type]
            and all(
                user.target is aten.split_with_sizes.default and list(user.args[1:]) == [rows] for user in product.users
            )
        )


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Return what enters one of the operators of frozen weights, and the weight."""
    x, weight = node.args[::-1] if node.target is _LABELS else node.args
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    return x, weight


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source

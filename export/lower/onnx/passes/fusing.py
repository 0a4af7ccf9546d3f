"""Operators of ONNX Runtime's own in place of several of ONNX: for one row an operator's call costs more than its work.

What is not found stays as it is, and computes the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.lower.onnx.passes.reshapes import join

_MICROSOFT = "com.microsoft"
_SWAPPED = [0, 2, 1, 3]
"""Heads and tokens."""


class _Graph:
    """Nodes in order, who makes a value, and who reads it."""

    def __init__(
        self, nodes: list[NodeProto], initializers: dict[str, TensorProto], shapes: dict[str, tuple[int, ...]]
    ) -> None:
        self.nodes = nodes
        self.initializers = initializers
        self.shapes = shapes
        self.index()

    def index(self) -> None:
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def made_by(self, name: str, kind: str) -> NodeProto | None:
        node = self.maker.get(name)
        return node if node is not None and node.op_type == kind else None

    def pairs(self, name: str, kind: str) -> Iterator[tuple[str, str]]:
        """Yield the operands of a commutative operator that makes a value, either way round."""
        node = self.made_by(name, kind)
        if node is not None and len(node.input) == 2:
            yield node.input[0], node.input[1]
            yield node.input[1], node.input[0]

    def constant(self, name: str) -> NDArray[Any] | None:
        tensor = self.initializers.get(name)
        is_here = tensor is not None and tensor.data_location != TensorProto.EXTERNAL
        return numpy_helper.to_array(tensor) if is_here and tensor is not None else None

    def scalar(self, name: str) -> float | None:
        array = self.constant(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def add(self, name: str, array: NDArray[Any]) -> str:
        self.initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def replace(self, node: NodeProto, *instead: NodeProto) -> None:
        place = next(i for i, one in enumerate(self.nodes) if one is node)
        self.nodes[place : place + 1] = instead


def fuse(
    nodes: list[NodeProto],
    initializers: dict[str, TensorProto],
    shapes: dict[str, tuple[int, ...]],
    results: Collection[str],
) -> None:
    """Rewrite `nodes`, in their order; `shapes` are those known, by the values' names."""
    graph = _Graph(nodes, initializers, shapes)
    for rewrite in (_norm, _silu, _rotary, _round, _scale):
        for node in list(graph.nodes):
            instead = rewrite(graph, node)
            if instead:
                graph.replace(node, *instead)
                graph.index()
    _keep_rank(graph)
    _swap_back(graph, results)
    _drop_unread(graph, results)
    join(nodes, shapes, results)
    _drop_unread(graph, results)


def fuse_alone(
    nodes: list[NodeProto],
    initializers: dict[str, TensorProto],
    shapes: dict[str, tuple[int, ...]],
    results: Collection[str],
) -> None:
    """Rewrite what pays for many rows: what nobody else reads, as tangents do, is not written to memory in between."""
    graph = _Graph(nodes, initializers, shapes)
    for node in list(graph.nodes):
        instead = _norm(graph, node) or _silu(graph, node)
        if instead and not _is_read_within(graph, node, instead[0].input[0]):
            graph.replace(node, *instead)
            graph.index()
    _drop_unread(graph, results)


def _is_read_within(graph: _Graph, last: NodeProto, first: str) -> bool:
    """Tell whether others read what is computed between a value and the node that it leads to, as tangents do."""
    between, waiting = [last], [*last.input]
    while waiting:
        name = waiting.pop()
        node = graph.maker.get(name)
        if name != first and node is not None and all(node is not one for one in between):
            between.append(node)
            waiting += node.input
    inside = between[1:]
    return any(all(reader is not one for one in between) for node in inside for reader in graph.readers[node.output[0]])


def _norm(graph: _Graph, node: NodeProto) -> list[NodeProto]:
    """RMSNorm: w · x / √(mean x² + ε)."""
    for weight, normed in graph.pairs(node.output[0], "Mul"):
        tensor = graph.initializers.get(weight)
        for x, inverse in graph.pairs(normed, "Mul") if tensor is not None and len(tensor.dims) == 1 else ():
            epsilon = _epsilon(graph, x, inverse)
            if epsilon is not None and graph.shapes.get(x, ())[-1:] == tuple(tensor.dims):  # type: ignore[union-attr]
                return [_node("SimplifiedLayerNormalization", [x, weight], node, axis=-1, epsilon=epsilon)]
    return []


def _epsilon(graph: _Graph, x: str, inverse: str) -> float | None:
    """Return ε if `inverse` is 1 / √(mean x² + ε) over the last axis; None otherwise."""
    reciprocal = graph.made_by(inverse, "Reciprocal")
    root = None if reciprocal is None else graph.made_by(reciprocal.input[0], "Sqrt")
    for mean, epsilon in graph.pairs(root.input[0], "Add") if root is not None else ():
        reduced = graph.made_by(mean, "ReduceMean")
        axes = None if reduced is None else graph.constant(reduced.input[1])
        square = None if reduced is None else graph.made_by(reduced.input[0], "Mul")
        if axes is not None and axes.tolist() == [-1] and square is not None and list(square.input) == [x, x]:
            return graph.scalar(epsilon)
    return None


def _silu(graph: _Graph, node: NodeProto) -> list[NodeProto]:
    for x, sigmoid in graph.pairs(node.output[0], "Mul"):
        made = graph.made_by(sigmoid, "Sigmoid")
        if made is not None and made.input[0] == x:
            return [_node("QuickGelu", [x], node, domain=_MICROSOFT, alpha=1.0)]
    return []


def _rotary(graph: _Graph, node: NodeProto) -> list[NodeProto]:
    """Rotary positions, x cos + (-x₂, x₁) sin, of halves with the same angles [1, tokens, size / 2]."""
    for straight, crossed in graph.pairs(node.output[0], "Add"):
        for x, cosine in graph.pairs(straight, "Mul"):
            for turned, sine in graph.pairs(crossed, "Mul"):
                angles = _angles(graph, cosine, "Cos")
                if angles is not None and angles == _angles(graph, sine, "Sin") and _is_turned(graph, x, turned):
                    return _rotated(graph, node, x, angles)
    return []


def _angles(graph: _Graph, table: str, kind: str) -> str | None:
    """Take the first half of the angles, where the second has the same."""
    reshaped = graph.made_by(table, "Reshape")
    function = graph.made_by(table if reshaped is None else reshaped.input[0], kind)
    both = None if function is None else graph.made_by(function.input[0], "Concat")
    return both.input[0] if both is not None and len({*both.input}) == 1 and len(both.input) == 2 else None


def _is_turned(graph: _Graph, x: str, turned: str) -> bool:
    both = graph.made_by(turned, "Concat")
    negative = None if both is None else graph.made_by(both.input[0], "Neg")
    if both is None or negative is None or x not in graph.shapes:
        return False
    size = graph.shapes[x][-1]
    halves = [graph.made_by(name, "Slice") for name in (both.input[1], negative.input[0])]
    expected = [(0, size // 2), (size // 2, size)]
    return all(
        half is not None and half.input[0] == x and _range(graph, half, size) == where
        for half, where in zip(halves, expected, strict=True)
    )


def _range(graph: _Graph, node: NodeProto, size: int) -> tuple[int, int] | None:
    """Read which part of the last axis a slice takes; None where it does anything else."""
    found = [graph.constant(name) for name in node.input[1:]]
    if len(found) != 4 or any(one is None or one.size != 1 for one in found):
        return None
    start, stop, axis, step = (int(one[0]) for one in found if one is not None)
    return (start, min(stop, size)) if step == 1 and axis in (-1, 3) else None


def _rotated(graph: _Graph, node: NodeProto, x: str, angles: str) -> list[NodeProto]:
    shape = graph.shapes[x]
    if len(shape) != 4 or shape[0] != 1:
        return []
    _, heads, tokens, size = shape
    places = graph.add(f"places.{tokens}", np.arange(tokens, dtype=np.int64)[np.newaxis])
    rows = graph.add(f"rows.{tokens}x{size // 2}", np.array([tokens, size // 2], np.int64))
    name = node.output[0]
    tables: list[NodeProto] = []
    for kind in ("Cos", "Sin"):
        tables.append(helper.make_node(kind, [angles], [f"{name}.{kind}"], name=f"{name}.{kind}"))
        table = f"{name}.{kind}.rows"
        tables.append(helper.make_node("Reshape", [f"{name}.{kind}", rows], [table], name=table))
    inputs = [places, *(table.output[0] for table in tables[1::2])]
    swap = graph.made_by(x, "Transpose")
    if swap is None or _permutation(swap) != _SWAPPED:
        return [*tables, _node("RotaryEmbedding", [x, *inputs], node, domain=_MICROSOFT)]
    # Tokens stay in front of heads: the operator takes them so, and who reads the result mostly wants them so.
    apart = graph.add(f"apart.{tokens}x{heads}x{size}", np.array([1, tokens, heads, size], np.int64))
    flat = graph.add(f"flat.{tokens}x{heads * size}", np.array([1, tokens, heads * size], np.int64))
    values = [f"{name}.{part}" for part in ("flat", "rotated", "apart")]
    graph.shapes |= {values[0]: (1, tokens, heads * size), values[1]: (1, tokens, heads * size)}
    graph.shapes[values[2]] = (1, tokens, heads, size)
    return [
        *tables,
        helper.make_node("Reshape", [swap.input[0], flat], values[:1], name=values[0]),
        helper.make_node(
            "RotaryEmbedding", [values[0], *inputs], values[1:2], name=values[1], domain=_MICROSOFT,
            num_heads=heads, rotary_embedding_dim=size,
        ),
        helper.make_node("Reshape", [values[1], apart], values[2:], name=values[2]),
        _node("Transpose", values[2:], node, perm=_SWAPPED),
    ]  # fmt: skip


def _round(graph: _Graph, node: NodeProto) -> list[NodeProto]:
    """Round one row to bytes: its scale is the tensor's."""
    if node.op_type != "QuantizeLinear" or graph.shapes.get(node.input[0], ())[:-1] != (1,):
        return []
    scale, middle = node.input[1], graph.constant(node.input[2])
    numbers, largest, zero = node.output[0], f"{node.output[0]}.scale", f"{node.output[0]}.zero"
    readers = [reader for reader in graph.readers.get(scale, []) if reader is not node]
    products = graph.readers.get(numbers, [])
    spreads = [reader for reader in readers if reader.op_type == "Unsqueeze"]
    if middle is None or middle.dtype != np.uint8 or len(spreads) != len(readers):
        return []
    if any(reader.op_type != "MatMulIntegerToFloat" for reader in products):
        return []
    for product in products:
        product.input[4] = zero
    for spread in spreads:
        for reader in graph.readers.get(spread.output[0], []):
            reader.input[:] = [largest if name == spread.output[0] else name for name in reader.input]
    return [helper.make_node("DynamicQuantizeLinear", [node.input[0]], [numbers, largest, zero], name=node.name)]


def _scale(graph: _Graph, node: NodeProto) -> list[NodeProto]:
    """Scale a product by its rounded row's scale itself, without another multiplication."""
    for product, scale in graph.pairs(node.output[0], "Mul"):
        made, rounded = graph.made_by(product, "MatMulIntegerToFloat"), graph.maker.get(scale)
        if made is None or rounded is None or rounded.op_type != "DynamicQuantizeLinear":
            continue
        if rounded.output[0] == made.input[0] and len(graph.readers[product]) == 1 and graph.scalar(made.input[2]) == 1:
            inputs = [*made.input[:2], scale, *made.input[3:]]
            return [_node("MatMulIntegerToFloat", inputs, node, domain=_MICROSOFT)]
    return []


def _keep_rank(graph: _Graph) -> None:
    """Keep the dimensions of one row that is rounded as its products get them back: [1, 1, in], not [1, in]."""
    for node in list(graph.nodes):
        made = graph.made_by(node.input[0], "Reshape") if node.op_type == "DynamicQuantizeLinear" else None
        products = [] if made is None else _only_reshaped(graph, node.output[0])
        if made is None or not products:
            continue
        shape = (1, *graph.shapes[made.output[0]])
        name = graph.add("shape." + "x".join(map(str, shape)), np.array(shape, np.int64))
        whole = f"{made.output[0]}.whole"
        graph.shapes[whole] = shape
        graph.replace(made, made, helper.make_node("Reshape", [made.input[0], name], [whole], name=whole))
        node.input[0] = whole
        for product, reshaped in products:
            graph.shapes[product] = graph.shapes[reshaped]
    graph.index()


def _only_reshaped(graph: _Graph, numbers: str) -> list[tuple[str, str]]:
    """Follow products of rounded numbers and their reshapes to [1, 1, out]; none where anything else reads one."""
    found: list[tuple[str, str]] = []
    for product in graph.readers.get(numbers, []):
        value = product.output[0]
        readers = graph.readers.get(value, [])
        if len(readers) == 1 and readers[0].op_type == "Mul":  # by the scale of a row
            value = readers[0].output[0]
            readers = graph.readers.get(value, [])
        for reader in readers:
            shape = graph.shapes.get(reader.output[0], ())
            if reader.op_type != "Reshape" or len(shape) != 3 or shape[:2] != (1, 1):
                return []
            found.append((value, reader.output[0]))
    return found


def _swap_back(graph: _Graph, results: Collection[str]) -> None:
    """Remove pairs of transpositions that undo each other; for one token, swap heads by a new shape."""
    same: dict[str, str] = {}
    for node in list(graph.nodes):
        node.input[:] = [same.get(name, name) for name in node.input]
        if node.op_type != "Transpose":
            continue
        if _permutation(node) == sorted(_permutation(node)) and node.output[0] not in results:
            same[node.output[0]] = node.input[0]
        if _permutation(node) != _SWAPPED:
            continue
        first = graph.made_by(node.input[0], "Transpose")
        if first is not None and _permutation(first) == _SWAPPED and node.output[0] not in results:
            same[node.output[0]] = first.input[0]
        shape = graph.shapes.get(node.input[0], ())
        if 1 in shape[1:3]:
            swapped = tuple(shape[i] for i in _SWAPPED)
            name = graph.add("shape." + "x".join(map(str, swapped)), np.array(swapped, np.int64))
            node.CopyFrom(helper.make_node("Reshape", [node.input[0], name], list(node.output), name=node.name))
            graph.shapes[node.output[0]] = swapped


def _permutation(node: NodeProto) -> list[int]:
    return next(([*one.ints] for one in node.attribute if one.name == "perm"), [])


def _drop_unread(graph: _Graph, results: Collection[str]) -> None:
    read = {*results}
    kept: list[NodeProto] = []
    for node in reversed(graph.nodes):
        if not read.isdisjoint(node.output):
            read.update(node.input)
            kept.append(node)
    graph.nodes[:] = reversed(kept)


def _node(kind: str, inputs: Sequence[str], of: NodeProto, domain: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, [of.output[0]], name=of.name, domain=domain, **attributes)

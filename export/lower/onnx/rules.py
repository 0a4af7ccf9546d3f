"""What each aten operator becomes in ONNX: one node, or a few.

A rule gets the graph, the node and the node's arguments; it returns the value's name, or the names of a tuple's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from export.lower.onnx.graph import DTYPES, NUMPY, Graph, Operand
from export.slots import value_of

aten = torch.ops.aten

Rule = Callable[..., str | list[str]]
RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def _shape(node: fx.Node) -> list[int]:
    return list(value_of(node).shape)


def _rank(node: fx.Node) -> int:
    return value_of(node).dim()


def _as(graph: Graph, operand: Any, dtype: torch.dtype) -> Operand:
    """An operand in the type that the operation is computed in."""
    if not isinstance(operand, fx.Node):
        return np.asarray(operand, NUMPY[dtype])
    return operand if value_of(operand).dtype == dtype else graph.op("Cast", operand, to=DTYPES[dtype])


# --- element by element ----------------------------------------------------------------------------------------------


def _arithmetic(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, a: Any, b: Any, alpha: float = 1) -> str:
        dtype = value_of(node).dtype
        second = _as(graph, b, dtype)
        if alpha != 1:
            second = graph.op("Mul", second, _as(graph, alpha, dtype))
        return graph.op(kind, _as(graph, a, dtype), second)

    return translate


for _name, _kind in {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}.items():
    _packet = getattr(aten, _name)
    RULES.update(dict.fromkeys((_packet.Tensor, _packet.Scalar), _arithmetic(_kind)))
RULES.update({aten.minimum.default: _arithmetic("Min"), aten.maximum.default: _arithmetic("Max")})


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(graph: Graph, node: fx.Node, a: Any, b: Any, alpha: float = 1) -> str | list[str]:
    return RULES[aten.sub.Tensor](graph, node, b, a, alpha)


@rule(aten.pow.Tensor_Scalar)
def _pow(graph: Graph, node: fx.Node, x: fx.Node, exponent: float) -> str:
    if exponent == 1:
        return graph.name(x)
    return graph.op("Mul", x, x) if exponent == 2 else graph.op("Pow", x, float(exponent))


def _unary(kind: str) -> Rule:
    return lambda graph, node, x: graph.op(kind, x)


for _target, _kind in {
    aten.abs.default: "Abs",
    aten.cos.default: "Cos",
    aten.erf.default: "Erf",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.neg.default: "Neg",
    aten.reciprocal.default: "Reciprocal",
    aten.relu.default: "Relu",
    aten.sigmoid.default: "Sigmoid",
    aten.sin.default: "Sin",
    aten.sqrt.default: "Sqrt",
    aten.tanh.default: "Tanh",
    aten.bitwise_not.default: "Not",
    aten.logical_not.default: "Not",
}.items():
    RULES[_target] = _unary(_kind)


@rule(aten.rsqrt.default)
def _rsqrt(graph: Graph, node: fx.Node, x: fx.Node) -> str:
    return graph.op("Reciprocal", graph.op("Sqrt", x))


@rule(aten.silu.default)
def _silu(graph: Graph, node: fx.Node, x: fx.Node) -> str:
    return graph.op("Mul", x, graph.op("Sigmoid", x))


@rule(aten.gelu.default)
def _gelu(graph: Graph, node: fx.Node, x: fx.Node, approximate: str = "none") -> str:
    return graph.op("Gelu", x, approximate=approximate)


@rule(aten.clamp.default, aten.clamp_min.default)
def _clamp(graph: Graph, node: fx.Node, x: fx.Node, min: float | None = None, max: float | None = None) -> str:  # noqa: A002
    dtype = value_of(node).dtype
    return graph.op("Clip", x, *(None if limit is None else _as(graph, limit, dtype) for limit in (min, max)))


@rule(aten.clone.default, aten.alias.default, aten.detach.default, aten.contiguous.default, aten.copy.default)
def _same(graph: Graph, node: fx.Node, *values: fx.Node, **_layout: Any) -> str:
    return graph.name(values[-1])


@rule(
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.type_as.default,
)
def _cast(graph: Graph, node: fx.Node, x: fx.Node, *_how: Any, **_layout: Any) -> str:
    return graph.name(_as(graph, x, value_of(node).dtype))


# --- comparisons and choices -----------------------------------------------------------------------------------------


def _comparison(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, a: fx.Node, b: Any) -> str:
        dtype = value_of(a).dtype
        dtype = torch.promote_types(dtype, value_of(b).dtype) if isinstance(b, fx.Node) else dtype
        if isinstance(b, float):
            dtype = torch.float32
        return graph.op(kind, _as(graph, a, dtype), _as(graph, b, dtype))

    return translate


for _name, _kind in {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.items():
    _packet = getattr(aten, _name)
    RULES.update(dict.fromkeys((_packet.Tensor, _packet.Scalar), _comparison(_kind)))


@rule(aten.ne.Tensor, aten.ne.Scalar)
def _not_equal(graph: Graph, node: fx.Node, a: fx.Node, b: Any) -> str:
    equal = RULES[aten.eq.Tensor](graph, node, a, b)
    assert isinstance(equal, str)
    return graph.op("Not", equal)


def _logical(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
        if value_of(node).dtype != torch.bool:
            raise NotImplementedError("bits of numbers")
        return graph.op(kind, _as(graph, a, torch.bool), _as(graph, b, torch.bool))

    return translate


RULES.update(dict.fromkeys((aten.bitwise_and.Tensor, aten.__and__.Tensor, aten.logical_and.default), _logical("And")))
RULES.update(dict.fromkeys((aten.bitwise_or.Tensor, aten.__or__.Tensor, aten.logical_or.default), _logical("Or")))


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(graph: Graph, node: fx.Node, condition: fx.Node, a: Any, b: Any) -> str:
    dtype = value_of(node).dtype
    return graph.op("Where", condition, _as(graph, a, dtype), _as(graph, b, dtype))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(graph: Graph, node: fx.Node, x: fx.Node, mask: fx.Node, filled: Any) -> str:
    return graph.op("Where", mask, _as(graph, filled, value_of(node).dtype), x)


# --- products --------------------------------------------------------------------------------------------------------


@rule(aten.matmul.default, aten.mm.default, aten.bmm.default)
def _matmul(graph: Graph, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
    return graph.op("MatMul", a, b)


@rule(aten.addmm.default)
def _addmm(graph: Graph, node: fx.Node, bias: fx.Node, a: fx.Node, b: fx.Node) -> str:
    return graph.op("Add", graph.op("MatMul", a, b), bias)


@rule(aten.linear.default)
def _linear(graph: Graph, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None = None) -> str:
    product = graph.op("MatMul", x, graph.op("Transpose", weight, perm=[1, 0]))
    return product if bias is None else graph.op("Add", product, bias)


@rule(aten.einsum.default)
def _einsum(graph: Graph, node: fx.Node, equation: str, operands: Sequence[fx.Node]) -> str:
    return graph.op("Einsum", *operands, equation=equation)


# --- normalization and reduction -------------------------------------------------------------------------------------


@rule(aten.softmax.int, aten._softmax.default)
def _softmax(graph: Graph, node: fx.Node, x: fx.Node, dim: int, *_type: Any, **_types: Any) -> str:
    return graph.op("Softmax", _as(graph, x, value_of(node).dtype), axis=dim)


@rule(aten.log_softmax.int, aten._log_softmax.default)
def _log_softmax(graph: Graph, node: fx.Node, x: fx.Node, dim: int, *_type: Any, **_types: Any) -> str:
    return graph.op("LogSoftmax", _as(graph, x, value_of(node).dtype), axis=dim)


def _normalized(
    graph: Graph, x: fx.Node, shape: Sequence[int], weight: Any, bias: Any, eps: float, outputs: int
) -> list[str]:
    weight = np.ones(shape, np.float32) if weight is None else weight
    return graph.ops("LayerNormalization", x, weight, bias, outputs=outputs, axis=-len(shape), epsilon=eps)


@rule(aten.layer_norm.default)
def _layer_norm(
    graph: Graph, node: fx.Node, x: fx.Node, shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5, *_enabled: bool,
) -> str:  # fmt: skip
    return _normalized(graph, x, shape, weight, bias, eps, 1)[0]


@rule(aten.native_layer_norm.default)
def _native_layer_norm(
    graph: Graph, node: fx.Node, x: fx.Node, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> list[str]:
    return _normalized(graph, x, shape, weight, bias, eps, 3)


def _reduction(kind: str) -> Rule:
    def translate(graph: Graph, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, **_: Any) -> str:
        axes = [dims] if isinstance(dims, int) else list(dims or range(_rank(x)))
        return graph.op(kind, _as(graph, x, value_of(node).dtype), graph.integers(*axes), keepdims=int(keepdim))

    return translate


RULES.update(dict.fromkeys((aten.sum.dim_IntList, aten.sum.default), _reduction("ReduceSum")))
RULES.update(dict.fromkeys((aten.mean.dim, aten.mean.default), _reduction("ReduceMean")))
RULES.update({aten.amax.default: _reduction("ReduceMax"), aten.amin.default: _reduction("ReduceMin")})


@rule(aten.argmax.default)
def _argmax(graph: Graph, node: fx.Node, x: fx.Node, dim: int, keepdim: bool = False) -> str:
    return graph.op("ArgMax", x, axis=dim, keepdims=int(keepdim))


@rule(aten.cumsum.default)
def _cumsum(graph: Graph, node: fx.Node, x: fx.Node, dim: int, **_types: Any) -> str:
    return graph.op("CumSum", _as(graph, x, value_of(node).dtype), np.asarray(dim, np.int64))


# --- shapes ----------------------------------------------------------------------------------------------------------


@rule(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default,
)  # fmt: skip
def _reshape(graph: Graph, node: fx.Node, x: fx.Node, *_shape_of: Any) -> str:
    return graph.reshape(x, _shape(node))


@rule(aten.expand.default, aten.expand_as.default)
def _expand(graph: Graph, node: fx.Node, x: fx.Node, *_sizes: Any) -> str:
    return graph.name(x) if _shape(x) == _shape(node) else graph.op("Expand", x, graph.integers(*_shape(node)))


@rule(aten.transpose.int)
def _transpose(graph: Graph, node: fx.Node, x: fx.Node, a: int, b: int) -> str:
    order = list(range(_rank(x)))
    order[a], order[b] = order[b], order[a]
    return graph.op("Transpose", x, perm=order)


@rule(aten.permute.default)
def _permute(graph: Graph, node: fx.Node, x: fx.Node, order: Sequence[int]) -> str:
    return graph.op("Transpose", x, perm=[axis % _rank(x) for axis in order])


@rule(aten.t.default)
def _t(graph: Graph, node: fx.Node, x: fx.Node) -> str:
    return graph.op("Transpose", x, perm=list(reversed(range(_rank(x)))))


@rule(aten.cat.default)
def _cat(graph: Graph, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    dtype = value_of(node).dtype
    return graph.op("Concat", *(_as(graph, part, dtype) for part in parts), axis=dim)


@rule(aten.stack.default)
def _stack(graph: Graph, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    axis = graph.integers(dim)
    return graph.op("Concat", *(graph.op("Unsqueeze", part, axis) for part in parts), axis=dim)


@rule(aten.split_with_sizes.default)
def _split(graph: Graph, node: fx.Node, x: fx.Node, sizes: Sequence[int], dim: int = 0) -> list[str]:
    return graph.ops("Split", x, graph.integers(*sizes), outputs=len(sizes), axis=dim)


@rule(aten.split.Tensor)
def _split_evenly(graph: Graph, node: fx.Node, x: fx.Node, size: int, dim: int = 0) -> list[str]:
    whole = _shape(x)[dim]
    return _split(graph, node, x, [min(size, whole - start) for start in range(0, whole, size)], dim)  # type: ignore[return-value]


@rule(aten.repeat_interleave.self_int)
def _repeat_interleave(graph: Graph, node: fx.Node, x: fx.Node, repeats: int, dim: int, **_size: Any) -> str:
    shape = _shape(x)
    at = dim % len(shape) + 1
    apart = graph.op("Unsqueeze", x, graph.integers(at))
    spread = graph.op("Expand", apart, graph.integers(*shape[:at], repeats, *shape[at:]))
    return graph.reshape(spread, _shape(node))


# --- parts -----------------------------------------------------------------------------------------------------------


def _bounds(node: fx.Node, dim: int, start: int | None, end: int | None) -> tuple[int, int]:
    size = _shape(node)[dim]
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@rule(aten.slice.Tensor)
def _slice(
    graph: Graph, node: fx.Node, x: fx.Node, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> str:  # fmt: skip
    bounds = _bounds(x, dim, start, end)
    return graph.op("Slice", x, *(graph.integers(n) for n in (*bounds, dim, step)))


@rule(aten.slice_scatter.default)
def _slice_scatter(
    graph: Graph, node: fx.Node, x: fx.Node, source: fx.Node, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> str:  # fmt: skip
    if step != 1:
        raise NotImplementedError(f"a step of {step}")
    first, last = _bounds(x, dim, start, end)
    size = _shape(x)[dim]
    parts: list[Operand] = [source]
    if first > 0:
        parts.insert(0, graph.op("Slice", x, *(graph.integers(n) for n in (0, first, dim))))
    if last < size:
        parts.append(graph.op("Slice", x, *(graph.integers(n) for n in (last, size, dim))))
    return graph.op("Concat", *parts, axis=dim)


@rule(aten.select.int)
def _select(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: int) -> str:
    return graph.op("Gather", x, np.asarray(index, np.int64), axis=dim)


@rule(aten.select_scatter.default)
def _select_scatter(graph: Graph, node: fx.Node, x: fx.Node, source: fx.Node, dim: int, index: int) -> str:
    first = index % _shape(x)[dim]
    row = graph.op("Unsqueeze", source, graph.integers(dim))
    return graph.name(_slice_scatter(graph, node, x, row, dim, first, first + 1))  # type: ignore[arg-type]


@rule(aten.index_select.default)
def _index_select(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node) -> str:
    return graph.op("Gather", x, index, axis=dim)


@rule(aten.gather.default)
def _gather(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, **_sparse: Any) -> str:
    return graph.op("GatherElements", x, index, axis=dim)


@rule(aten.scatter_add.default)
def _scatter_add(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, source: fx.Node) -> str:
    return graph.op("ScatterElements", x, index, source, axis=dim, reduction="add")


@rule(aten.scatter.src)
def _scatter(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, source: fx.Node) -> str:
    return graph.op("ScatterElements", x, index, source, axis=dim)


@rule(aten.scatter.value)
def _scatter_value(graph: Graph, node: fx.Node, x: fx.Node, dim: int, index: fx.Node, filled: float) -> str:
    source = graph.op("Expand", _as(graph, filled, value_of(x).dtype), graph.integers(*_shape(index)))
    return graph.op("ScatterElements", x, index, source, axis=dim)


def _tuples(graph: Graph, indices: Sequence[fx.Node]) -> tuple[str, list[int]]:
    """Index tensors that broadcast together, as one tensor of tuples [..., n]."""
    common = list(torch.broadcast_shapes(*(value_of(index).shape for index in indices)))
    columns = [
        graph.op("Unsqueeze", graph.op("Expand", index, graph.integers(*common)), graph.integers(-1))
        for index in indices
    ]
    return graph.op("Concat", *columns, axis=-1), common


@rule(aten.index.Tensor)
def _index(graph: Graph, node: fx.Node, x: fx.Node, indices: Sequence[fx.Node | None]) -> str:
    """`x[:, i, j]`: the indexed axes first, one look-up, and their place again."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    present = [index for index in indices if index is not None]
    first, count = axes[0], len(axes)
    if axes != list(range(first, first + count)):
        raise NotImplementedError("index tensors with a whole axis between them")
    if any(value_of(index).dtype != torch.int64 for index in present):
        raise NotImplementedError("index tensors that are not int64")
    places, common = _tuples(graph, present)
    if first == 0:
        return graph.op("GatherND", x, places)
    rest = list(range(first + count, _rank(x)))
    ahead = graph.op("Transpose", x, perm=[*axes, *range(first), *rest])
    found = graph.op("GatherND", ahead, places)
    n = len(common)
    order = [*range(n, n + first), *range(n), *range(n + first, n + first + len(rest))]
    return graph.op("Transpose", found, perm=order)


@rule(aten.index_put.default)
def _index_put(
    graph: Graph, node: fx.Node, x: fx.Node, indices: Sequence[fx.Node | None], values: fx.Node,
    accumulate: bool = False,
) -> str:  # fmt: skip
    present = [index for index in indices if index is not None]
    if len(present) != len(indices) or any(value_of(index).dtype != torch.int64 for index in present):
        raise NotImplementedError("index tensors that are missing or not int64")
    places, common = _tuples(graph, present)
    shape = [*common, *_shape(x)[len(present) :]]
    source: Operand = values
    if _shape(values) != shape:
        source = graph.op("Expand", values, graph.integers(*shape))
    return graph.op("ScatterND", x, places, source, reduction="add" if accumulate else "none")


# --- made from nothing -----------------------------------------------------------------------------------------------


def _filled(graph: Graph, node: fx.Node, number: float) -> str:
    array = np.asarray([number], NUMPY[value_of(node).dtype])
    if not _shape(node):
        return graph.constant(array[0])
    # Expand, because a constant of this shape would lie in the file.
    return graph.op("Expand", array, graph.integers(*_shape(node)))


@rule(aten.full.default)
def _full(graph: Graph, node: fx.Node, shape: Sequence[int], number: float, **_layout: Any) -> str:
    return _filled(graph, node, number)


@rule(aten.full_like.default)
def _full_like(graph: Graph, node: fx.Node, x: fx.Node, number: float, **_layout: Any) -> str:
    return _filled(graph, node, number)


@rule(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def _zeros(graph: Graph, node: fx.Node, *_like: Any, **_layout: Any) -> str:
    return _filled(graph, node, 0)


@rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(graph: Graph, node: fx.Node, *_like: Any, **_layout: Any) -> str:
    return _filled(graph, node, 1)


@rule(aten.scalar_tensor.default)
def _scalar(graph: Graph, node: fx.Node, number: float, **_layout: Any) -> str:
    return graph.constant(np.asarray(number, NUMPY[value_of(node).dtype]))


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(graph: Graph, node: fx.Node, *bounds: float, **_layout: Any) -> str:
    return graph.constant(np.arange(*bounds, dtype=NUMPY[value_of(node).dtype]))

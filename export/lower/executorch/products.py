"""The operators of `export.graph.ops` as XNNPACK computes them, for each form in which a weight is stored.

The chains of quantizing and dequantizing are torchao's; XNNPACK takes each as one kernel with integer arithmetic. No
such kernel multiplies with a weight turned around, so an exact gradient's 8-bit codes are stored once more, turned; its
4-bit ones are dequantized inside the delegate.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

import torch
from torch import Tensor, fx

from export.graph.slots import value_of
from export.lower.executorch.graph import EdgeGraph
from export.lower.executorch.weights import Quantized

# Importing these registers the operators below, and the embeddings' kernels.
for _module in (
    "torch.ao.quantization.fx._decomposed",
    "torchao.quantization.quant_primitives",
    "executorch.exir.passes._quant_patterns_and_replacements",
):
    importlib.import_module(_module)

aten = torch.ops.aten
_torchao = torch.ops.torchao
_decomposed = torch.ops.quantized_decomposed
_EPSILON = torch.finfo(torch.float32).eps


def linear(
    edge: EdgeGraph, x: fx.Node, name: str, weight: Tensor | Quantized, bias: fx.Node | None, *, alone: bool = False
) -> fx.Node:
    """Multiply by a frozen weight, x @ weight.T (+ bias); `alone` may be in another delegate than others of the same x.

    Numbers in 8 bits do not cross from one delegate to the next.
    """
    if isinstance(weight, Tensor):
        return edge.call(aten.linear.default, x, edge.constant(name, weight), bias or _no_bias(edge, len(weight)))
    added = [] if bias is None else [bias]
    turned = x if weight.rotation is None else edge.once(x, "turned", lambda: _turned(edge, x, weight.rotation))
    what = f"in 8 bits for {name}" if alone else "in 8 bits"
    rows = edge.once(turned, what, lambda: _rows_of_activations(edge, turned))
    return edge.call(aten.linear.default, rows, _rows_of_weight(edge, name, weight), *added)


def _no_bias(edge: EdgeGraph, rows: int) -> fx.Node:
    """Zeros, which tell a product from the same weight's the other way round, where no bias is added.

    Before 1.5 ExecuTorch knows weights that XNNPACK has packed by their names and their biases' alone, whichever way
    round they are: the second of two such products would be computed with what was packed for the first.
    """
    return edge.constant(f"no bias of {rows}", torch.zeros(rows))


def _turned(edge: EdgeGraph, x: fx.Node, rotation: Tensor | None) -> fx.Node:
    if rotation is None:
        return x
    groups = edge.reshape(x, -1, len(rotation))
    turned = edge.call(aten.linear.default, groups, edge.constant("rotation", rotation))
    return edge.reshape(turned, *value_of(x).shape)


def _rows_of_weight(edge: EdgeGraph, name: str, weight: Quantized) -> fx.Node:
    codes = edge.constant(f"codes of {name}", weight.codes)
    scales = edge.constant(f"scales of {name}", weight.scales)
    zeros = edge.constant(f"zeros of {name}", torch.zeros(weight.scales.shape, dtype=torch.int64))
    block = [1, weight.codes.shape[1] // weight.scales.shape[1]]
    return edge.call(
        _torchao.dequantize_affine.default, codes, block, scales, zeros, torch.int8, weight.lowest, weight.highest
    )


def _rows_of_activations(edge: EdgeGraph, x: fx.Node) -> fx.Node:
    """Quantize activations in 8 bits with one scale and zero point per token."""
    block = [1] * (value_of(x).dim() - 1) + [value_of(x).shape[-1]]
    chosen = edge.call(
        _torchao.choose_qparams_affine.default, x, "ASYMMETRIC", block, torch.int8, None, None, _EPSILON,
        torch.float32, torch.int32, True,
    )  # fmt: skip
    scale, zero = edge.part(chosen, 0), edge.part(chosen, 1)
    codes = edge.call(_torchao.quantize_affine.default, x, block, scale, zero, torch.int8)
    return edge.call(_torchao.dequantize_affine.default, codes, block, scale, zero, torch.int8)


def linear_t(edge: EdgeGraph, gradient: fx.Node, name: str, weight: Tensor | Quantized) -> fx.Node:
    """Multiply by a frozen weight the other way round, gradient @ weight."""
    shape = tuple(value_of(gradient).shape)
    if isinstance(weight, Tensor):
        flat = edge.reshape(gradient, -1, shape[-1])
        return edge.reshape(edge.call(aten.mm.default, flat, edge.constant(name, weight)), *shape[:-1], weight.shape[1])
    if weight.lowest == -8:
        return _int4_linear_t(edge, gradient, name, weight)
    rows, columns = weight.codes.shape
    # Each row's scale goes into the gradient, so that the turned weight needs none.
    scales = edge.constant(f"row scales of {name}", weight.scales.reshape(rows))
    scaled = _rows_of_activations(edge, edge.call(aten.mul.Tensor, gradient, scales))
    turned = replace(weight, codes=weight.codes.T.contiguous(), scales=torch.ones(columns, 1))
    product = edge.call(aten.linear.default, scaled, _rows_of_weight(edge, f"{name}, turned", turned))
    return _turned(edge, product, weight.rotation)


def _int4_linear_t(edge: EdgeGraph, gradient: fx.Node, name: str, weight: Quantized) -> fx.Node:
    """Even and odd columns apart: byte = 16·high + low, read with its sign; code = nibble - 8."""
    shape = tuple(value_of(gradient).shape)
    rows, columns = weight.codes.shape
    groups = weight.scales.shape[1]
    signed = _as_float(edge, edge.constant(f"nibbles of {name}", weight.nibbles))
    high = edge.call(aten.floor.default, edge.call(aten.mul.Tensor, signed, edge.number(1 / 16)))
    low = edge.call(aten.sub.Tensor, signed, edge.call(aten.mul.Tensor, high, edge.number(16)))
    # `high` runs from -8 to 7, its negative half standing for 8 to 15.
    negative = edge.call(aten.clamp.default, edge.call(aten.add.Tensor, high, edge.number(1)), 0, 1)
    turn = edge.call(aten.sub.Tensor, edge.number(8), edge.call(aten.mul.Tensor, negative, edge.number(16)))
    units = edge.constant(f"units of {name}", weight.unit.reshape(1, 1, rows))
    multiples = edge.constant(f"multiples of {name}", (weight.scales / weight.unit).to(torch.int8))
    scales = edge.reshape(_as_float(edge, multiples), rows, groups, 1)
    flat = edge.call(aten.mul.Tensor, edge.reshape(gradient, 1, -1, rows), units)
    halves: list[fx.Node] = []
    for codes in (edge.call(aten.sub.Tensor, low, edge.number(8)), edge.call(aten.add.Tensor, high, turn)):
        grouped = edge.call(aten.mul.Tensor, edge.reshape(codes, rows, groups, columns // groups // 2), scales)
        product = edge.call(aten.bmm.default, flat, edge.reshape(grouped, 1, rows, columns // 2))
        halves.append(edge.reshape(product, -1, columns // 2, 1))
    product = edge.reshape(edge.call(aten.cat.default, halves, -1), *shape[:-1], columns)
    return _turned(edge, product, weight.rotation)


def _as_float(edge: EdgeGraph, codes: fx.Node) -> fx.Node:
    return edge.call(_decomposed.dequantize_per_tensor.default, codes, 1.0, 0, -128, 127, torch.int8)


def embedding(edge: EdgeGraph, ids: fx.Node, name: str, table: Tensor | Quantized) -> fx.Node:
    if isinstance(table, Tensor):
        return edge.call(aten.embedding.default, edge.constant(name, table), ids)
    codes = edge.constant(f"codes of table {name}", table.codes)
    scales = edge.constant(f"scales of table {name}", table.scales.reshape(-1))
    return edge.call(_decomposed.embedding_byte.default, codes, scales, None, -128, 127, ids)


def rows(edge: EdgeGraph, ids: fx.Node, name: str, weight: Tensor | Quantized) -> fx.Node:
    """Rows of a product's weight, which is stored once more: XNNPACK keeps what it packs to itself."""
    if isinstance(weight, Tensor):
        return edge.call(aten.embedding.default, edge.constant(name, weight), ids)
    codes = edge.constant(f"codes of rows of {name}", weight.codes)
    scales = weight.scales.reshape(-1) if weight.scales.shape[1] == 1 else weight.scales
    kept = edge.constant(f"scales of rows of {name}", scales)
    found = edge.call(_decomposed.embedding_byte.default, codes, kept, None, -128, 127, ids)
    return _turned(edge, found, weight.rotation)

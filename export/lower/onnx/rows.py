"""Frozen weights in 8 bits with a scale per row: products of bytes, tables that are looked up, and both in one.

What enters a product is rounded to 8 bits with a scale of its own for each token, and for each token's tangent. A few
channels of a transformer's hidden state are ten times larger than the rest, and that one scale has to reach them: the
input is turned first, by a small orthogonal matrix within groups of its channels, and the weight with it. Large numbers
then spread over their group, and x R (W R)' is x W'. Where that is too coarse for a model, what is left of the input is
rounded once more, in a second digit with a product of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import ClassVar

import numpy as np
from onnx import TensorProto
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.encodings import MIDDLE, Floats, decode_rows, encode_rows, group_of, hadamard, signed
from export.lower.onnx.frozen import Frozen
from export.lower.onnx.graph import MICROSOFT, Array, Graph, Operand, WeightReference

Digits = tuple[Sequence[str], str]
"""The digits of a product's input: numbers, the coarse ones first, and the scales of the rows of these."""

_MIDDLE = np.array(MIDDLE, np.uint8)
_DIGIT = 254.0
"""A digit's scale in the next one's: what is left of a number is at most half a step to either side."""
_TINY = 1e-20
"""The scale in place of a largest value of zero."""


class Rows8(Frozen):
    """Unsigned bytes around 128, whose products overflow on no processor."""

    turned: ClassVar[bool] = True
    middle: ClassVar[Array] = _MIDDLE
    """The number that stands for zero in the weight."""
    suffix: ClassVar[str] = "u8"
    digits: ClassVar[int] = 1
    """The number of digits of a product's input, 8 bits each."""

    @classmethod
    def rounded(cls, weight: Floats) -> Floats:
        return decode_rows(*encode_rows(weight, turned=cls.turned), turned=cls.turned)

    @staticmethod
    def stored(numbers: Array) -> Array:
        """Return the bytes in the file."""
        return numbers

    def _encoded(self) -> tuple[WeightReference, WeightReference]:
        encoded: list[Array] = []

        def numbers() -> Array:
            encoded.extend(encode_rows(self.array(), turned=self.turned))
            stored = self.stored(encoded[0])
            return stored if self.rows else stored.T

        return self.store(self.suffix, numbers), self.store("scale", lambda: encoded[1])

    def linear(self, graph: Graph, x: fx.Node) -> str:
        """Lower a product of values and tangents stacked alike, since each row has a scale of its own."""
        weight, scales = (graph.external(reference) for reference in self._encoded())
        rows = _rounded_once(graph, x, self.digits)
        product = self._product(graph, rows, weight, scales, turn=self.rows)
        return _shaped(graph, product, (*value_of(x).shape[:-1], self.out))

    def linear_t(self, graph: Graph, gradient: fx.Node) -> str:
        """Likewise, once each output channel's scale is in the gradient."""
        weight, scales = (graph.external(reference) for reference in self._encoded())
        shape = value_of(gradient).shape
        rows = _rounded(graph, graph.op("Mul", gradient, scales), shape, self.digits)
        product = self._product(graph, rows, weight, 1.0, turn=not self.rows)
        return _turned(graph, product, (*shape[:-1], self.columns))

    def _product(self, graph: Graph, digits: Digits, weight: str, scales: Operand, *, turn: bool) -> str:
        if turn:
            weight = graph.op("Transpose", weight, perm=[1, 0])
        numbers, row_scales = digits
        products = [
            graph.op(
                "MatMulIntegerToFloat", digit, weight, _DIGIT**-place, scales, _MIDDLE, self.middle, domain=MICROSOFT
            )
            for place, digit in enumerate(numbers)
        ]
        product = reduce(lambda one, other: graph.op("Add", one, other), products)
        scaled = graph.op("Mul", product, row_scales)
        graph.scales.products[scaled] = product, row_scales
        return scaled

    def embedding(self, graph: Graph, ids: fx.Node) -> str:
        weight, scales = (graph.external(reference) for reference in self._encoded())
        numbers = graph.op("Cast", graph.op("Gather", weight, ids, axis=0), to=TensorProto.FLOAT)
        if self.middle != 0:
            numbers = graph.op("Sub", numbers, float(self.middle))
        scale = graph.op("Unsqueeze", graph.op("Gather", scales, ids, axis=0), graph.integers(-1))
        rows = graph.op("Mul", numbers, scale)
        return _turned(graph, rows, (*value_of(ids).shape, self.columns)) if self.turned else rows


class SignedRows8(Rows8):
    """Twice as fast where the processor adds products of unsigned and signed bytes in 32 bits."""

    middle = np.array(0, np.int8)
    suffix = "s8"

    @staticmethod
    def stored(numbers: Array) -> Array:
        return signed(numbers)


class FineRows8(Rows8):
    """A product with two digits: nearly as exact as the weight, for twice the products."""

    digits = 2


class FineSignedRows8(SignedRows8):
    """A product with two digits for processors that add products of unsigned and signed bytes in 32 bits."""

    digits = 2


class Table8(Rows8):
    """A table that is only looked up, as it is."""

    turned = False


def _rounded_once(graph: Graph, x: fx.Node, digits: int) -> Digits:
    """Round what enters once, turned; several products share it."""
    key = "rows", graph.name(x)
    if key not in graph.notes:
        shape = value_of(x).shape
        rows = math.prod(shape[:-1]), shape[-1]
        graph.notes[key] = _rounded(graph, _turned(graph, x, rows), rows, digits)
    rounded: Digits = graph.notes[key]
    return rounded


def _rounded(graph: Graph, x: Operand, shape: Sequence[int], digits: int) -> Digits:
    """Round in 8 bits around 128 [rows, in], for each digit; with the scale of each row [rows, 1]."""
    count = math.prod(shape[:-1])
    rows = x if len(shape) == 2 else graph.reshape(x, (count, shape[-1]))
    # The extremes of either sign: magnitudes would be written to memory for it, and read again.
    highest, lowest = (graph.op(kind, rows, graph.integers(-1), keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
    scale = graph.op("Mul", graph.op("Max", highest, graph.op("Neg", lowest), _TINY), 1 / 127)
    row_scales = graph.op("Unsqueeze", scale, graph.integers(-1))
    graph.scales.rows[row_scales] = count
    if digits == 1:
        graph.scales.rounded[graph.name(rows)] = row_scales
    middles, numbers = np.full(count, _MIDDLE), list[str]()
    while len(numbers) < digits:
        numbers.append(graph.op("QuantizeLinear", rows, scale, middles, axis=0))
        if len(numbers) < digits:
            rows = graph.op("Sub", rows, graph.op("DequantizeLinear", numbers[-1], scale, middles, axis=0))
            scale = graph.op("Mul", scale, 1 / _DIGIT)
    return numbers, row_scales


def _turned(graph: Graph, x: Operand, shape: Sequence[int]) -> str:
    """Within groups of channels, in the shape given; turned twice it is as it was."""
    group = group_of(shape[-1])
    matrix = graph.constant(hadamard(group))
    graph.scales.turns.add(matrix)
    return graph.reshape(graph.op("MatMul", graph.reshape(x, (-1, group)), matrix), shape)


def _shaped(graph: Graph, product: Operand, shape: Sequence[int]) -> str:
    return graph.name(product) if len(shape) == 2 else graph.reshape(product, shape)

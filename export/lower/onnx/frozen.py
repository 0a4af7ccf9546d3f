"""Frozen weights in ONNX: how each precision stores one, multiplies by it in both orientations, and looks rows up.

    none   float32, one MatMul over values and tangents
    int8   a scale per output channel. Activations are two 8-bit digits, the second for what the first leaves over:
           rounded once, they spoil a directional derivative by ten percent. Tangents are one digit with a scale per
           row, which costs two percent and makes their product half as dear as the values'.
    int4   MatMulNBits, blocks of 32; embedding tables in int8

The other orientation reads the same bytes. Weights with a side below 32 stay in float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto
from torch import Tensor, fx

from export.graph.slots import value_of
from export.lower.onnx.encodings import BLOCK, MIDDLE, Floats, decode_blocks, decode_rows, encode_blocks, encode_rows
from export.lower.onnx.graph import MICROSOFT, Array, Graph, Operand, WeightFile, WeightReference
from export.lower.target import Precision

_SMALLEST = 32
_AT_ONCE = 4_000_000
"""Weights that are dequantized at a time where a product needs them in float32: 16 MB."""
_MIDDLE = np.array(MIDDLE, np.uint8)
_TINY = 1e-20
"""In place of a largest value of zero."""


def encoding_of(shape: Sequence[int], precision: Precision, *, embedding: bool) -> type[Frozen]:
    """How a weight is stored; `embedding` is true of a table that is only looked up."""
    if precision == "none" or min(shape) < _SMALLEST:
        return Float
    return Rows8 if precision == "int8" or embedding else Blocks4


def dequantized(weight: Floats, precision: Precision, *, embedding: bool) -> Floats:
    """What the programs compute with."""
    return encoding_of(weight.shape, precision, embedding=embedding).rounded(weight)


class Frozen(ABC):
    """One weight [out, in] in its file, or some of its rows."""

    def __init__(
        self,
        name: str,
        weight: Tensor,
        file: WeightFile,
        *,
        rows: bool,
        own: WeightFile,
        part: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.weight = weight
        self.file = file
        self.own = own
        """The segment's file: for what another user of a tied weight may not need."""
        self.rows = rows
        """Stored as a table [out, in], else for products [in, out]."""
        self.part = (0, weight.shape[0]) if part is None else part
        """The rows meant, of a table."""
        self.out, self.columns = self.part[1] - self.part[0], weight.shape[1]

    def store(self, suffix: str, make: Callable[[], Array]) -> WeightReference:
        """The rows meant of what is stored whole."""
        whole = self.file.add(f"{self.name}.{suffix}", make)
        return whole.slice(*self.part) if self.rows else whole

    def array(self) -> Floats:
        return self.weight.detach().numpy()

    @staticmethod
    @abstractmethod
    def rounded(weight: Floats) -> Floats:
        """The weight as the programs see it."""

    @abstractmethod
    def linear(self, graph: Graph, x: Operand) -> str: ...

    def linear_before_t(self, graph: Graph, x: Operand) -> str:
        """The product, where that with the other orientation comes right behind it and may share what it needs."""
        return self.linear(graph, x)

    @abstractmethod
    def linear_t(self, graph: Graph, gradient: Operand) -> str: ...

    @abstractmethod
    def embedding(self, graph: Graph, ids: fx.Node) -> str: ...


class Float(Frozen):
    @staticmethod
    def rounded(weight: Floats) -> Floats:
        return weight

    def _weight(self, graph: Graph) -> str:
        if self.rows:
            return graph.external(self.store("rows", self.array))
        return graph.external(self.store("columns", lambda: self.array().T))

    def linear(self, graph: Graph, x: Operand) -> str:
        return _product(graph, x, self._weight(graph), turned=self.rows)

    def linear_t(self, graph: Graph, gradient: Operand) -> str:
        return _product(graph, gradient, self._weight(graph), turned=not self.rows)

    def embedding(self, graph: Graph, ids: fx.Node) -> str:
        return graph.op("Gather", self._weight(graph), ids, axis=0)


def _product(graph: Graph, x: Operand, weight: str, *, turned: bool) -> str:
    """FusedMatMul reads the transposed weight where it lies; a Transpose would make a copy of it."""
    if turned:
        return graph.op("FusedMatMul", x, weight, domain=MICROSOFT, transB=1)
    return graph.op("MatMul", x, weight)


class Rows8(Frozen):
    """Symmetric 8 bits with one scale per row: per output channel of a product, per entry of a table."""

    @staticmethod
    def rounded(weight: Floats) -> Floats:
        return decode_rows(*encode_rows(weight))

    def _encoded(self) -> tuple[WeightReference, WeightReference]:
        encoded: list[Array] = []

        def numbers() -> Array:
            encoded.extend(encode_rows(self.array()))
            return encoded[0] if self.rows else encoded[0].T

        return self.store("u8", numbers), self.store("scale", lambda: encoded[1])

    def _for_products(self, graph: Graph) -> tuple[str, str]:
        weight, scales = (graph.external(reference) for reference in self._encoded())
        return graph.op("Transpose", weight, perm=[1, 0]) if self.rows else weight, scales

    def linear(self, graph: Graph, x: Operand) -> str:
        weight, scales = self._for_products(graph)
        digits = [
            graph.op("MatMulIntegerToFloat", number, weight, scale, scales, zero, _MIDDLE, domain=MICROSOFT)
            for number, scale, zero in _digits(graph, x)
        ]
        return graph.op("Add", *digits)

    def tangent(self, graph: Graph, x: Operand) -> str:
        """The product of a tangent: one digit, with a scale per row."""
        weight, scales = self._for_products(graph)
        number, row_scale = _rounded_rows(graph, x)
        product = graph.op("MatMulIntegerToFloat", number, weight, 1.0, scales, _MIDDLE, _MIDDLE, domain=MICROSOFT)
        return graph.op("Mul", product, row_scale)

    def linear_t(self, graph: Graph, gradient: Operand) -> str:
        """In float32: DequantizeLinear's copy lives for one product, and a large weight's only slice by slice."""
        numbers, scales = self._encoded()
        slices = _slices(*numbers.shape)
        if self.rows:
            weights = [self._floats(graph, numbers.slice(*part), scales.slice(*part), axis=0) for part in slices]
            return _sum_of_products(graph, gradient, weights, slices)
        columns: list[str] = []
        for part in slices:
            weight = self._floats(graph, numbers.slice(*part), scales, axis=1)
            columns.append(_product(graph, gradient, weight, turned=True))
        return columns[0] if len(columns) == 1 else graph.op("Concat", *columns, axis=-1)

    def _floats(self, graph: Graph, numbers: WeightReference, scales: WeightReference, *, axis: int) -> str:
        count = scales.shape[0]
        zero = self.own.add(f"middle.{count}", lambda: np.full(count, MIDDLE, np.uint8))
        return graph.op("DequantizeLinear", *(graph.external(part) for part in (numbers, scales, zero)), axis=axis)

    def embedding(self, graph: Graph, ids: fx.Node) -> str:
        weight, scales = (graph.external(reference) for reference in self._encoded())
        numbers = graph.op("Cast", graph.op("Gather", weight, ids, axis=0), to=TensorProto.FLOAT)
        centred = graph.op("Sub", numbers, float(MIDDLE))
        scale = graph.op("Unsqueeze", graph.op("Gather", scales, ids, axis=0), graph.integers(-1))
        return graph.op("Mul", centred, scale)


def _slices(rows: int, columns: int) -> list[tuple[int, int]]:
    step = max(1, _AT_ONCE // columns)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _sum_of_products(graph: Graph, gradient: Operand, weights: Sequence[str], slices: Sequence[tuple[int, int]]) -> str:
    """The product with a weight whose rows come in slices."""
    if len(weights) == 1:
        return graph.op("MatMul", gradient, weights[0])
    sizes = graph.integers(*(stop - start for start, stop in slices))
    parts = graph.ops("Split", gradient, sizes, outputs=len(slices), axis=-1)
    return graph.op("Sum", *(graph.op("MatMul", part, weight) for part, weight in zip(parts, weights, strict=True)))


def _digits(graph: Graph, x: Operand) -> list[list[str]]:
    """An activation as two 8-bit numbers, each with scale and zero point; computed once for all its products."""
    name = graph.name(x)
    if ("digits", name) not in graph.notes:
        first = graph.ops("DynamicQuantizeLinear", name, outputs=3)
        rest = graph.op("Sub", name, graph.op("DequantizeLinear", *first))
        graph.notes["digits", name] = [first, graph.ops("DynamicQuantizeLinear", rest, outputs=3)]
    digits: list[list[str]] = graph.notes["digits", name]
    return digits


def _rounded_rows(graph: Graph, x: Operand) -> tuple[str, str]:
    """A tangent in 8 bits around 128, and the scale of each row."""
    name = graph.name(x)
    if ("rows", name) not in graph.notes:
        largest = graph.op("ReduceMax", graph.op("Abs", name), graph.integers(-1), keepdims=1)
        scale = graph.op("Mul", graph.op("Max", largest, _TINY), 1 / 127)
        number = graph.op("QuantizeLinear", graph.op("Div", name, scale), 1.0, _MIDDLE)
        graph.notes["rows", name] = number, scale
    rounded: tuple[str, str] = graph.notes["rows", name]
    return rounded


class Blocks4(Frozen):
    """MatMulNBits with activations rounded to 8 bits per block of 32."""

    @staticmethod
    def rounded(weight: Floats) -> Floats:
        return decode_blocks(*encode_blocks(weight), weight.shape[1])

    def _encoded(self) -> tuple[WeightReference, WeightReference]:
        encoded: list[Array] = []

        def numbers() -> Array:
            encoded.extend(encode_blocks(self.array()))
            return encoded[0]

        return self.store("i4", numbers), self.store("scale", lambda: encoded[1])

    @property
    def blocks(self) -> int:
        return -(-self.columns // BLOCK)

    def linear(self, graph: Graph, x: Operand) -> str:
        numbers, scales = self._encoded()
        flat = graph.external(scales, ".flat", shape=(self.out * self.blocks,))
        return graph.op(
            "MatMulNBits", x, graph.external(numbers), flat, domain=MICROSOFT,
            K=self.columns, N=self.out, bits=4, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def linear_before_t(self, graph: Graph, x: Operand) -> str:
        """In float32, with what the other product needs too: a packed copy would be of no other use."""
        weights, slices = self._floats(graph)
        if len(slices) > 1 or self.columns % BLOCK:
            return self.linear(graph, x)
        return _product(graph, x, weights[0], turned=True)

    def linear_t(self, graph: Graph, gradient: Operand) -> str:
        return self._unpadded(graph, _sum_of_products(graph, gradient, *self._floats(graph)))

    def _floats(self, graph: Graph) -> tuple[list[str], list[tuple[int, int]]]:
        """The packed bytes, seen as uint4 [out, in], in float32, slice by slice."""
        key = "floats", self.name, self.part
        if key not in graph.notes:
            graph.notes[key] = self._dequantized(graph)
        floats: tuple[list[str], list[tuple[int, int]]] = graph.notes[key]
        return floats

    def _dequantized(self, graph: Graph) -> tuple[list[str], list[tuple[int, int]]]:
        numbers, scales = self._encoded()
        wide = self.blocks * BLOCK
        slices = _slices(self.out, wide)
        weights: list[str] = []
        for start, stop in slices:
            part, shape = numbers.slice(start, stop), (stop - start, self.blocks)
            view = graph.external(part, ".view", dtype=TensorProto.UINT4, shape=(shape[0], wide))
            zeros = self.own.add(f"zero.{shape[0]}x{shape[1]}", lambda n=shape[0] * shape[1]: _eights(n))
            zero = graph.external(zeros, dtype=TensorProto.UINT4, shape=shape)
            scale = graph.external(scales.slice(start, stop))
            weights.append(graph.op("DequantizeLinear", view, scale, zero, axis=1, block_size=BLOCK))
        return weights, slices

    def embedding(self, graph: Graph, ids: fx.Node) -> str:
        """Only for a table that is also a product's weight."""
        shape = tuple(value_of(ids).shape)
        numbers, scales = (graph.external(reference) for reference in self._encoded())
        packed = graph.op("Gather", numbers, ids, axis=0)
        last = graph.integers(-1)
        low = graph.op("Unsqueeze", graph.op("BitwiseAnd", packed, np.array(15, np.uint8)), last)
        high = graph.op("Unsqueeze", graph.op("BitShift", packed, np.array(4, np.uint8), direction="RIGHT"), last)
        pairs = graph.op("Cast", graph.op("Concat", low, high, axis=-1), to=TensorProto.FLOAT)
        centred = graph.op("Sub", graph.reshape(pairs, [*shape, self.blocks, BLOCK]), 8.0)
        values = graph.op("Mul", centred, graph.op("Unsqueeze", graph.op("Gather", scales, ids, axis=0), last))
        return self._unpadded(graph, graph.reshape(values, [*shape, self.blocks * BLOCK]))

    def _unpadded(self, graph: Graph, padded: str) -> str:
        if self.columns % BLOCK == 0:
            return padded
        return graph.op("Slice", padded, graph.integers(0), graph.integers(self.columns), graph.integers(-1))


def _eights(count: int) -> Array:
    """The zero point of `count` blocks, two to a byte."""
    return np.full(-(-count // 2), 0x88, np.uint8)

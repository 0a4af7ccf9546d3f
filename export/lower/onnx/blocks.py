"""Frozen weights in 4 bits with a scale per block of 32: MatMulNBits, and the other orientation in float32."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.encodings import BLOCK, Floats, decode_blocks, encode_blocks
from export.lower.onnx.frozen import Frozen, product, slices, sum_of_products
from export.lower.onnx.graph import MICROSOFT, Array, Graph, WeightReference


class Blocks4(Frozen):
    """MatMulNBits with activations rounded to 8 bits per block of 32."""

    @classmethod
    def rounded(cls, weight: Floats) -> Floats:
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

    def linear(self, graph: Graph, x: fx.Node) -> str:
        numbers, scales = self._encoded()
        flat = graph.external(scales, ".flat", shape=(self.out * self.blocks,))
        return graph.op(
            "MatMulNBits", x, graph.external(numbers), flat, domain=MICROSOFT,
            K=self.columns, N=self.out, bits=4, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def linear_before_t(self, graph: Graph, x: fx.Node) -> str:
        """Multiply in float32, with what the other product needs too: a packed copy would be of no other use."""
        weights, parts = self._floats(graph)
        if len(parts) > 1 or self.columns % BLOCK:
            return self.linear(graph, x)
        return product(graph, x, weights[0], turned=True)

    def linear_t(self, graph: Graph, gradient: fx.Node) -> str:
        return self._unpadded(graph, sum_of_products(graph, gradient, *self._floats(graph)))

    def _floats(self, graph: Graph) -> tuple[list[str], list[tuple[int, int]]]:
        """Return the packed bytes, seen as uint4 [out, in], in float32, slice by slice."""
        key = "floats", self.name, self.part
        if key not in graph.notes:
            graph.notes[key] = self._dequantized(graph)
        floats: tuple[list[str], list[tuple[int, int]]] = graph.notes[key]
        return floats

    def _dequantized(self, graph: Graph) -> tuple[list[str], list[tuple[int, int]]]:
        numbers, scales = self._encoded()
        wide = self.blocks * BLOCK
        parts = slices(self.out, wide)
        weights: list[str] = []
        for start, stop in parts:
            part, shape = numbers.slice(start, stop), (stop - start, self.blocks)
            view = graph.external(part, ".view", dtype=TensorProto.UINT4, shape=(shape[0], wide))
            zeros = self.own.add(f"zero.{shape[0]}x{shape[1]}", lambda n=shape[0] * shape[1]: _eights(n))
            zero = graph.external(zeros, dtype=TensorProto.UINT4, shape=shape)
            scale = graph.external(scales.slice(start, stop))
            weights.append(graph.op("DequantizeLinear", view, scale, zero, axis=1, block_size=BLOCK))
        return weights, parts

    def embedding(self, graph: Graph, ids: fx.Node) -> str:
        """Look up rows, only for a table that is also a product's weight."""
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
    """Return the zero point of `count` blocks, two to a byte."""
    return np.full(-(-count // 2), 0x88, np.uint8)

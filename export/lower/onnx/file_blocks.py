"""Frozen weights in the blocks that their file has: MatMulNBits over its integers, with nothing rounded again.

Where a block's numbers count from its smallest value (Q4_1), a second product adds what the first leaves out: the sum
of a block's inputs, times the value in the middle of the block's range.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto
from torch import fx

from export.graph.slots import value_of
from export.lower.onnx.blocks import Blocks4
from export.lower.onnx.encodings import BLOCK
from export.lower.onnx.frozen import product, slices, sum_of_products
from export.lower.onnx.graph import MICROSOFT, Graph, WeightReference
from export.model.kept import KeptBlocks, kept_blocks


class FileBlocks(Blocks4):
    """Needs a weight with blocks kept beside it, in 4 or 8 bits."""

    @property
    def kept(self) -> KeptBlocks:
        kept = kept_blocks(self.weight)
        assert kept is not None
        return kept

    def _encoded(self) -> tuple[WeightReference, WeightReference]:
        kept = self.kept
        return self.store(f"i{kept.bits}", kept.codes), self.store("scale", kept.scales)

    def _shifts(self) -> WeightReference | None:
        shifts = self.kept.shifts()
        return None if shifts is None else self.store("shift", lambda: shifts)

    def linear(self, graph: Graph, x: fx.Node) -> str:
        numbers, scales = self._encoded()
        flat = graph.external(scales, ".flat", shape=(self.out * self.blocks,))
        result = graph.op(
            "MatMulNBits", x, graph.external(numbers), flat, domain=MICROSOFT,
            K=self.columns, N=self.out, bits=self.kept.bits, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip
        return self._shifted(graph, x, result)

    def linear_before_t(self, graph: Graph, x: fx.Node) -> str:
        weights, parts = self._floats(graph)
        if len(parts) > 1:
            return self.linear(graph, x)
        return self._shifted(graph, x, product(graph, x, weights[0], turned=True))

    def _shifted(self, graph: Graph, x: fx.Node, result: str) -> str:
        shifts = self._shifts()
        if shifts is None:
            return result
        key = "sums of blocks", x
        if key not in graph.notes:
            apart = graph.reshape(x, (-1, self.blocks, BLOCK))
            graph.notes[key] = graph.op("ReduceSum", apart, graph.integers(-1), keepdims=0)
        sums, shape = graph.notes[key], (*value_of(x).shape[:-1], self.out)
        if math.prod(shape[:-1]) == 1:
            return graph.op("Add", result, product(graph, sums, graph.external(shifts), turned=True))
        # Added within the product, of many rows neither the sum nor what is added takes memory of its own.
        flat = graph.reshape(result, (-1, self.out))
        return graph.reshape(graph.op("Gemm", sums, graph.external(shifts), flat, transB=1), shape)

    def linear_t(self, graph: Graph, gradient: fx.Node) -> str:
        result, shifts = sum_of_products(graph, gradient, *self._floats(graph)), self._shifts()
        if shifts is None:
            return result
        shape = tuple(value_of(gradient).shape[:-1])
        of_blocks = graph.op("MatMul", gradient, graph.external(shifts))
        apart = graph.reshape(result, [*shape, self.blocks, BLOCK])
        both = graph.op("Add", apart, graph.op("Unsqueeze", of_blocks, graph.integers(-1)))
        return graph.reshape(both, [*shape, self.columns])

    def _dequantized(self, graph: Graph) -> tuple[list[str], list[tuple[int, int]]]:
        """Dequantize without the offsets of blocks."""
        if self.kept.bits == 4:
            return super()._dequantized(graph)
        numbers, scales = self._encoded()
        parts, weights = slices(self.out, self.columns), list[str]()
        for start, stop in parts:
            shape = stop - start, self.blocks
            middle = self.own.add(f"middle.{shape[0]}x{shape[1]}", lambda shape=shape: np.full(shape, 128, np.uint8))
            view = graph.external(numbers.slice(start, stop), ".view", shape=(shape[0], self.columns))
            scale = graph.external(scales.slice(start, stop))
            weights.append(graph.op("DequantizeLinear", view, scale, graph.external(middle), axis=1, block_size=BLOCK))
        return weights, parts

    def embedding(self, graph: Graph, ids: fx.Node) -> str:
        values = super().embedding(graph, ids) if self.kept.bits == 4 else self._looked_up(graph, ids)
        if (shifts := self._shifts()) is None:
            return values
        last, shape = graph.integers(-1), tuple(value_of(ids).shape)
        of_blocks = graph.op("Unsqueeze", graph.op("Gather", graph.external(shifts), ids, axis=0), last)
        apart = graph.reshape(values, [*shape, self.blocks, BLOCK])
        return graph.reshape(graph.op("Add", apart, of_blocks), [*shape, self.columns])

    def _looked_up(self, graph: Graph, ids: fx.Node) -> str:
        numbers, scales = (graph.external(reference) for reference in self._encoded())
        bytes_ = graph.op("Cast", graph.op("Gather", numbers, ids, axis=0), to=TensorProto.FLOAT)
        scale = graph.op("Unsqueeze", graph.op("Gather", scales, ids, axis=0), graph.integers(-1))
        values = graph.op("Mul", graph.op("Sub", bytes_, 128.0), scale)
        return graph.reshape(values, [*value_of(ids).shape, self.columns])

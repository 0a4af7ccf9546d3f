"""Which encoding a frozen weight has in ONNX.

    none   float32, one MatMul over values and tangents
    int8   a scale per output channel; what enters has one per token and tangent (`rows`), in 8 bits or in 7
           (`processors`)
    int4   MatMulNBits, blocks of 32 (`blocks`); embedding tables in int8

The other orientation reads the same bytes. Weights with a side below 32 stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from export.lower.onnx.blocks import Blocks4
from export.lower.onnx.frozen import Float, Frozen
from export.lower.onnx.rows import Rows8, Table8
from export.lower.target import Precision

_SMALLEST = 32


def encoding_of(shape: Sequence[int], precision: Precision, *, embedding: bool, products: type[Rows8]) -> type[Frozen]:
    """Choose how a weight is stored; `embedding` is true for a table that is only looked up."""
    if precision == "none" or min(shape) < _SMALLEST:
        return Float
    if embedding:
        return Table8
    return products if precision == "int8" else Blocks4

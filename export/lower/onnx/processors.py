"""Which form of int8 products is for which processor."""

from __future__ import annotations

from collections.abc import Mapping

from edge_client.runtimes.processors import Processor
from export.lower.onnx.rows import FineRows7, FineRows8, Rows7, Rows8

PRODUCTS: Mapping[Processor, type[Rows8]] = {
    "avx2": Rows7,
    "vnni": Rows8,
    "amx": Rows8,
    "arm-dotprod": Rows8,
}
FINE: Mapping[type[Rows8], type[Rows8]] = {Rows7: FineRows7, Rows8: FineRows8}
"""The same with two digits, which models need whose derivatives are too coarse with one."""
ANYWHERE: Processor = "avx2"
"""Right on every processor."""

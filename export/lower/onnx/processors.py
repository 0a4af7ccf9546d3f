"""Which form of int8 products is for which processor, and which of them is fastest on this machine."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, fx

from edge_client.arrays import Array
from edge_client.bundle.manifest import PLAIN, ProgramSpec, TensorSpec
from edge_client.runtimes.processors import Processor, this_processor
from edge_client.runtimes.runtime import Runtime, open_runtime
from export.graph import ops
from export.graph.slots import value_of
from export.lower.onnx.graph import Graph, WeightFile
from export.lower.onnx.rows import FineRows8, FineSignedRows8, Rows8, SignedRows8
from export.lower.target import Shaped

PRODUCTS: Mapping[Processor, type[Rows8]] = {
    "avx2": Rows8,
    "vnni": SignedRows8,
    "amx": SignedRows8,
    "arm-dotprod": SignedRows8,
}
FINE: Mapping[type[Rows8], type[Rows8]] = {Rows8: FineRows8, SignedRows8: FineSignedRows8}
"""The finer form of each, for models whose derivatives are too coarse in one digit."""
ANYWHERE: Processor = "avx2"
"""Right on every processor."""
_RUNS = 7
_CLEARLY = 0.9
"""The share of the portable form's time that another form must beat: measurements vary by less."""
_MOST_ROWS, _MOST_CHANNELS = 512, 1024


def fastest(programs: Sequence[Shaped]) -> Processor:
    """Choose the fastest form of a product of the most frequent shape; the portable one unless clearly slower."""
    here, shape = this_processor(), _most_frequent(programs)
    if PRODUCTS[here] is PRODUCTS[ANYWHERE] or shape is None:
        return ANYWHERE
    own, anywhere = (_seconds(PRODUCTS[name], *shape) for name in (here, ANYWHERE))
    return here if own < _CLEARLY * anywhere else ANYWHERE


def _most_frequent(programs: Sequence[Shaped]) -> tuple[int, int, int] | None:
    """Rows, inputs and outputs of a frozen product; None where there are none."""
    shapes: Counter[tuple[int, int, int]] = Counter()
    for shaped in programs:
        for node in shaped.program.graph.graph.find_nodes(op="call_function", target=ops.linear):
            x, weight = (value_of(operand) for operand in node.args)
            shapes[x.numel() // x.shape[-1], weight.shape[1], weight.shape[0]] += 1
    if not shapes:
        return None
    rows, inputs, outputs = max(shapes, key=lambda shape: (shapes[shape], shape))
    return min(rows, _MOST_ROWS), min(inputs, _MOST_CHANNELS), min(outputs, _MOST_CHANNELS)


def _seconds(kind: type[Rows8], rows: int, inputs: int, outputs: int) -> float:
    """Measure the least time of one product, alone on one thread."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(rows, inputs, generator=generator).numpy()
    with tempfile.TemporaryDirectory() as name:
        program = _written(kind, weight, rows, Path(name))
        with open_runtime("onnx", Path(name), threads=1) as runtime:
            return min(_timed(runtime, program, x) for _ in range(_RUNS))


def _timed(runtime: Runtime, program: ProgramSpec, x: Array) -> float:
    started = time.thread_time()
    runtime.run(program, {"x": x})
    return time.thread_time() - started


def _written(kind: type[Rows8], weight: Tensor, rows: int, folder: Path) -> ProgramSpec:
    """Write a program of one product, in files."""
    traced, graph, file = fx.Graph(), Graph(), WeightFile("weights.bin")
    x, y = (traced.placeholder(name) for name in "xy")
    x.meta["val"], y.meta["val"] = torch.empty(rows, weight.shape[1]), torch.empty(rows, weight.shape[0])
    graph.values[x] = "in0"
    graph.values[y] = kind("weight", weight, file, rows=False, own=file).linear(graph, x)
    (folder / "product.onnx").write_bytes(graph.model([x], [y]))
    (folder / file.file).write_bytes(file.content())
    specs = [(TensorSpec(node.name, "float32", tuple(value_of(node).shape)),) for node in (x, y)]
    return ProgramSpec("product", PLAIN, rows, 1, 0, "product.onnx", "", *specs, flops=0, load_bytes=0, peak_bytes=0)

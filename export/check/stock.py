"""The forward of a stock runtime, as a worker process of `export.check.baselines`; torch is not imported for ONNX.

All optimizations are on and nothing is set but the number of threads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.manifest import PLAIN, ProgramSpec, TensorSpec
from edge_client.commands.bench.figures import STOCK_ONNX, megabytes
from edge_client.commands.bench.timing import taken_by
from edge_client.memory import resident


class Sizes(NamedTuple):
    inputs: int
    """The number of inputs that a model takes: tokens, their mask, maybe more."""
    batch: int
    length: int
    threads: int


def file_of(folder: str | Path, runtime: str, step: str) -> Path:
    """Return the exported model's path; the file is there only if its export succeeded."""
    return Path(folder) / f"{step.replace(' ', '-')}{'.onnx' if runtime == STOCK_ONNX else '.pte'}"


Step = Callable[[], object]


def onnx_loader(file: Path, sizes: Sizes) -> Callable[[], Step]:
    """Make a loader of the model, which returns a function that runs it."""
    import onnxruntime

    ort: Any = onnxruntime
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = sizes.threads, 1

    def load() -> Step:
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        inputs = {entry.name: _tokens(sizes) for entry in session.get_inputs()}
        return lambda: session.run(None, inputs)

    return load


def executorch_loader(file: Path, sizes: Sizes) -> Callable[[], Step]:
    from edge_client.runtimes.executorch import ExecutorchRuntime

    class Undescribed(ExecutorchRuntime):
        """Runs a program whose results' shapes stand in no manifest."""

        def run(self, program: ProgramSpec, inputs: Mapping[str, Array]) -> dict[str, Array]:
            self.load(program)
            results = self._loaded[program.file, program.method]([inputs[spec.name] for spec in program.inputs])
            return {spec.name: result for spec, result in zip(program.outputs, results, strict=True)}

    shape = sizes.batch, sizes.length
    inputs = tuple(TensorSpec(f"tokens.{i}", "int64", shape) for i in range(sizes.inputs))
    logits = (TensorSpec("logits", "float32", ()),)
    program = ProgramSpec("model", PLAIN, *shape, 0, file.name, "forward", inputs, logits, 0, 0, 0)
    runtime = Undescribed(file.parent, threads=sizes.threads)
    tokens = {spec.name: _tokens(sizes) for spec in inputs}

    def load() -> Step:
        runtime.load(program)
        return lambda: runtime.run(program, tokens)

    return load


def _tokens(sizes: Sizes) -> Array:
    return np.ones((sizes.batch, sizes.length), np.int64)


def main(runtime: str, step: str, folder: str, inputs: str, *sizes: str) -> None:
    batch, length, rounds, threads = map(int, sizes)
    file = file_of(folder, runtime, step)
    load = (onnx_loader if runtime == STOCK_ONNX else executorch_loader)(
        file, Sizes(int(inputs), batch, length, threads)
    )
    before = resident()
    run = load()
    loaded = resident()
    taken = taken_by(run, rounds)
    row = {
        "runtime": runtime, "step": step, "cpu_ms": round(taken.cpu_ms, 2),
        "peak_mb": megabytes(taken.peaks.own), "peak_mapped_mb": megabytes(taken.peaks.mapped),
        "load_mb": megabytes(max(loaded - before, 0)), "rss_mb": megabytes(resident("VmHWM")),
    }  # fmt: skip
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

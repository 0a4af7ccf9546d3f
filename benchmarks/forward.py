"""Compare a bundle's steps with eager PyTorch in float32, stock ONNX Runtime and llama.cpp.

    python benchmarks/forward.py BUNDLE [--stock] [--llama PYTHON --gguf FILE ...] [--cut 0.5] [--rounds 5] [--json]

Each in a process of its own on one thread; they take turns, and the least CPU time of each counts, as a busy machine's
other times say little. Eager PyTorch runs the bundle's architecture with random weights, up to its losses; stock ONNX
Runtime what torch.onnx.export makes of it in float32 and quantize_dynamic in int8, up to its logits. PYTHON is one that
imports llama_cpp, and every FILE is read in one batch of as many tokens as a step has: with the logits of all tokens,
as a step computes, and with the last one's alone, as before an answer.

A process's memory is what it has after its steps and had at the highest, while it loaded too: Python, its libraries
and the weights are in it. How large the weights are is printed beside it.

The processor's instruction sets are those that the machine lists; `avx2_alone.c`, preloaded, hides those beyond AVX2
from every library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EAGER = "eager PyTorch, float32"
_STEPS = ("forward", "dual", "exact")
_LLAMA = """
import sys, time
import numpy as np
from llama_cpp import Llama
file, tokens, everywhere = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "all"
model = Llama(file, n_ctx=tokens + 8, n_batch=tokens, n_ubatch=tokens, n_threads=1, n_threads_batch=1,
              logits_all=everywhere, verbose=False)
ids = np.random.default_rng(0).integers(5, 1000, tokens).tolist()
def step():
    model.reset()
    model.eval(ids)
step()
for _ in sys.stdin:
    started = time.process_time()
    step()
    print(time.process_time() - started, flush=True)
"""


class Row(NamedTuple):
    name: str
    seconds: float
    resident: float
    """MB of the process after its steps."""
    highest: float
    """MB of it at most."""


def _eager(folder: Path, *_: str) -> Callable[[], object]:
    import torch

    from edge_client.bundle.folder import Bundle
    from export.check.eager import tokens_of, unadapted
    from export.graph.capture import TaskForward
    from export.tasks.registry import MODEL_TASKS

    torch.set_num_threads(1)
    manifest = Bundle.open(folder, verify=False).manifest
    batch, length = manifest.shapes[0]
    task = MODEL_TASKS[manifest.model.task]
    model = TaskForward(unadapted(Bundle.open(folder, verify=False), "sdpa"), task, manifest.inputs)
    labels = torch.zeros(task.kind.label_shape(batch, length), dtype=torch.int64)
    inputs = (*tokens_of(manifest, batch, length), labels)
    return torch.no_grad()(lambda: model(*inputs))


def _ours(folder: Path, runtime: str, kind: str, part: str) -> Callable[[], object]:
    from edge_client.bundle.chain import Chain
    from edge_client.bundle.folder import Bundle
    from edge_client.commands.bench.worker import Bench, BenchWork, Variant
    from edge_client.memory import return_freed_blocks

    return_freed_blocks()  # as `spry join` does
    manifest = Bundle.open(folder, verify=False).manifest
    batch, length = manifest.shapes[0]
    starts = list(Chain(manifest, runtime, batch, length, manifest.directions[0]).starts())
    cut = starts[min(int(float(part) * len(starts)), len(starts) - 1)]
    variant = Variant(kind, cut, manifest.directions[0])
    return Bench(BenchWork(str(folder), runtime, batch, length, 1, 1, [variant], memory=False)).step(variant)


def _stock(folder: Path, file: str) -> Callable[[], object]:
    from edge_client.bundle.folder import Bundle
    from export.check.stock import Sizes, onnx_loader

    manifest = Bundle.open(folder, verify=False).manifest
    return onnx_loader(Path(file), Sizes(len(manifest.inputs), *manifest.shapes[0], 1))()


WORK: dict[str, Callable[..., Callable[[], object]]] = {"eager": _eager, "ours": _ours, "stock": _stock}


def work(which: str, folder: str, *options: str) -> None:
    """One process's part: a step for each line that it reads."""
    step = WORK[which](Path(folder), *options)
    step()
    for _ in sys.stdin:
        started = time.process_time()
        step()
        print(time.process_time() - started, flush=True)


def commands(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """List the processes that are timed in turns, and how each is started."""
    from edge_client.bundle.folder import Bundle

    manifest, own = Bundle.open(options.bundle, verify=False).manifest, [sys.executable, __file__, "--work"]
    yield EAGER, [*own, "eager", str(options.bundle)]
    for runtime, spec in manifest.runtimes.items():
        for kind in _STEPS:
            yield f"{runtime} {spec.precision}, {kind}", [*own, "ours", str(options.bundle), runtime, kind, options.cut]
    if options.stock:
        yield from ((name, [*own, "stock", str(options.bundle), file]) for name, file in _exported(options, folder))
    tokens = str(np.prod(manifest.shapes[0]))
    for file in options.gguf:
        for which in ("all", "last"):
            yield f"llama.cpp {file.name}, logits: {which}", [options.llama, "-c", _LLAMA, str(file), tokens, which]


def _exported(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str]]:
    from edge_client.commands.bench.figures import STOCK_FP32, STOCK_INT8, STOCK_ONNX
    from export.check.stock import file_of

    command = [sys.executable, "-m", "export.check.stock_export", STOCK_ONNX, str(options.bundle), str(folder)]
    subprocess.run([*command, str(options.shape[0]), str(options.shape[1])], check=True, capture_output=True)
    for step in (STOCK_FP32, STOCK_INT8):
        yield f"stock ONNX Runtime, {step}", str(file_of(folder, STOCK_ONNX, step))


def measured(options: argparse.Namespace) -> list[Row]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started: dict[str, subprocess.Popen[str]] = {}
        for name, command in commands(options, folder):
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            started[name] = stack.enter_context(subprocess.Popen(command, text=True, env=environment, **pipes))
        taken = [{name: _turn(process) for name, process in started.items()} for _ in range(options.rounds)]
        memory = {name: _memory(process) for name, process in started.items()}
        for process in started.values():
            assert process.stdin is not None
            process.stdin.close()
    return [Row(name, min(turn[name] for turn in taken), *memory[name]) for name in started]


def _memory(process: subprocess.Popen[str]) -> list[float]:
    """Return the MB of a process and its peak; nothing of one that has ended."""
    from edge_client.memory import resident

    if process.poll() is not None:
        return [float("nan")] * 2
    return [resident(field, process.pid) / 1e6 for field in ("VmRSS", "VmHWM")]


def weights(bundle: Path, runtime: str) -> float:
    """Return the MB of a runtime's weights on disk, where they lie in files beside the programs."""
    return sum(file.stat().st_size for file in (bundle / runtime).rglob("*.bin")) / 1e6


def _turn(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())
    except (BrokenPipeError, ValueError):
        return float("nan")


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--stock", action="store_true", help="stock ONNX Runtime, too")
    parser.add_argument("--llama", default=sys.executable, help="a Python that imports llama_cpp")
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="files for llama.cpp")
    parser.add_argument("--cut", default="0.5", help="where tangents start, as a part of the cuts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from edge_client.bundle.folder import Bundle
    from edge_client.runtimes.processors import CPUINFO, cpu_features

    options.shape = Bundle.open(options.bundle, verify=False).manifest.shapes[0]
    rows = measured(options)
    features = cpu_features(CPUINFO.read_text()) if CPUINFO.exists() else []
    if options.json:
        told = {row.name: row._asdict() for row in rows}
        print(json.dumps({"processor": features, "shape": options.shape, "rows": told}))
        return
    print(f"{options.shape[0]} x {options.shape[1]} tokens, one thread; the processor has {', '.join(features)}")
    eager = rows[0].seconds
    for row in rows:
        memory = f"{row.resident:6.0f} MB resident, {row.highest:6.0f} at most"
        print(f"{row.name:45s} {row.seconds:8.3f} CPU s   {row.seconds / eager:5.2f} of eager   {memory}")
    for runtime in Bundle.open(options.bundle, verify=False).manifest.runtimes:
        if size := weights(options.bundle, runtime):
            print(f"weights of {runtime} on disk: {size:.0f} MB")


if __name__ == "__main__":
    main()

"""What the outside world costs on a bundle's shapes, so that no ratio is to this project's programs alone.

Stock runtimes run the forward of the bundle's architecture, with random weights and without an adapter (one that is
merged in costs nothing), as their users export it. Eager PyTorch takes steps with the adapter: backprop with and
without checkpoints, `torch.func.jvp`, two-pass central difference. Each is measured in a process of its own, so that
this module costs nothing to import; one that fails gives its reason in the place of figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edge_client.bundle.folder import Bundle
from edge_client.commands.bench.figures import EAGER, STOCK_EXECUTORCH, STOCK_FP32, STOCK_INT8, STOCK_ONNX
from export.check.stock import file_of

for _library in ("torch", "transformers", "peft"):
    if find_spec(_library) is None:
        raise ImportError(f"the baselines need {_library}", name=_library)

BACKPROP, CHECKPOINTED, JVP, CENTRAL = "backprop", "checkpointed", "func.jvp", "central"
BASELINES = (BACKPROP, CHECKPOINTED, JVP, CENTRAL)
STOCK = {
    STOCK_ONNX: ("onnx", "onnxscript", "onnxruntime"),
    STOCK_EXECUTORCH: ("executorch", "torchao"),
}
"""Runtimes, and the libraries that an export to them takes."""
PATIENCE = 60.0
"""Seconds that a stock runtime's export may take."""
Row = dict[str, Any]


def measure(bundle: Path, batch: int, length: int, rounds: int, threads: int) -> Iterator[Row]:
    """Rows of `spry bench step`."""
    sizes = [str(number) for number in (batch, length, rounds, threads)]
    for runtime in STOCK:
        yield from _stock(runtime, bundle, sizes)
    for name in BASELINES:
        yield eager(name, bundle, batch, length, rounds, threads)


def eager(name: str, bundle: Path, batch: int, length: int, rounds: int, threads: int) -> Row:
    """One of `BASELINES`."""
    sizes = [str(number) for number in (batch, length, rounds, threads)]
    return _row([f"{__package__}.eager", str(bundle), name, *sizes], EAGER, name)


def _stock(runtime: str, bundle: Path, sizes: Sequence[str]) -> Iterator[Row]:
    missing = [library for library in STOCK[runtime] if find_spec(library) is None]
    if missing:
        yield {"runtime": runtime, "step": "", "skipped": f"needs {' and '.join(missing)}"}
        return
    inputs = str(len(Bundle.open(bundle, verify=False).manifest.inputs))
    forward = None
    with TemporaryDirectory() as folder:
        # In a process of its own, whose memory is not the runtime's.
        _, reason = _run([f"{__package__}.stock_export", runtime, str(bundle), folder, *sizes[:2]], PATIENCE)
        for step in (STOCK_FP32, STOCK_INT8):
            if reason and not file_of(folder, runtime, step).exists():
                yield {"runtime": runtime, "step": step, "skipped": f"does not export: {reason}"}
                continue
            row = _row([f"{__package__}.stock", runtime, step, folder, inputs, *sizes], runtime, step)
            if "skipped" not in row:
                forward = forward or row["cpu_ms"]
                row["ratio"] = round(row["cpu_ms"] / forward, 3)
            yield row


def _row(command: Sequence[str], runtime: str, step: str) -> Row:
    printed, reason = _run(command)
    if reason:
        return {"runtime": runtime, "step": step, "skipped": reason}
    row: Row = json.loads(printed.splitlines()[-1])
    return row


def _run(command: Sequence[str], patience: float | None = None) -> tuple[str, str]:
    """What a module prints, and the last line of what it complains of, if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=False, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return "", f"it takes over {patience:.0f} s"
    if not done.returncode:
        return done.stdout, ""
    last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
    return "", (last or [f"exit status {done.returncode}"])[0]

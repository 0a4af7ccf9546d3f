"""Measure other software on a bundle's shapes, so that no ratio is to this project's programs alone.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
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
PATIENCE = {STOCK_ONNX: 160.0, STOCK_EXECUTORCH: 60.0}
"""Seconds that a stock runtime's export may take; all lines have a ratio to the first's forward."""
Row = dict[str, Any]


class Measuring:
    """Rows of `spry bench step`; the stock runtimes' exports begin at once, beside whatever is measured meanwhile."""

    def __init__(self, bundle: Path, batch: int, length: int, rounds: int, threads: int) -> None:
        self._bundle = bundle
        self._sizes = batch, length, rounds, threads
        self._exports = _Exports(bundle, batch, length)

    def __iter__(self) -> Iterator[Row]:
        with closing(self):
            for name in BASELINES:
                yield eager(name, self._bundle, *self._sizes)
            for runtime, libraries in STOCK.items():
                if missing := _missing(libraries):
                    yield {"runtime": runtime, "step": "", "skipped": f"needs {' and '.join(missing)}"}
                else:
                    yield from self._stock(runtime)

    def close(self) -> None:
        """End what still runs."""
        self._exports.close()

    def _stock(self, runtime: str) -> Iterator[Row]:
        reason, forward = self._exports.wait(runtime), None
        inputs = str(len(Bundle.open(self._bundle, verify=False).manifest.inputs))
        sizes = [str(number) for number in self._sizes]
        for step in (STOCK_FP32, STOCK_INT8):
            if reason and not file_of(self._exports.folder, runtime, step).exists():
                yield {"runtime": runtime, "step": step, "skipped": reason}
                continue
            row = _row([f"{__package__}.stock", runtime, step, self._exports.folder, inputs, *sizes], runtime, step)
            if "skipped" not in row:
                forward = forward or row["cpu_ms"]
                row["ratio"] = round(row["cpu_ms"] / forward, 3)
            yield row


class _Exports:
    """Exports to the stock runtimes, one after the other, each in a process of its own: its memory is no runtime's."""

    def __init__(self, bundle: Path, batch: int, length: int) -> None:
        self._kept = TemporaryDirectory()
        self.folder = self._kept.name
        self._running: subprocess.Popen[str] | None = None
        self._lock, self._closed = Lock(), False
        self._thread = ThreadPoolExecutor(1)
        arguments = str(bundle), self.folder, str(batch), str(length)
        exported = [runtime for runtime, libraries in STOCK.items() if not _missing(libraries)]
        self._reasons = {runtime: self._thread.submit(self._export, runtime, arguments) for runtime in exported}

    def wait(self, runtime: str) -> str:
        """Wait for an export, and return the reason why it ended early; empty if it did not."""
        return self._reasons[runtime].result()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._running is not None:
                self._running.kill()
        self._thread.shutdown()
        self._kept.cleanup()

    def _export(self, runtime: str, arguments: Sequence[str]) -> str:
        command = [sys.executable, "-m", f"{__package__}.stock_export", runtime, *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with self._lock:
            if self._closed:
                return "it was not waited for"
            self._running = subprocess.Popen(command, **pipes)
        with self._running as process:
            try:
                complaints = process.communicate(timeout=PATIENCE[runtime])[1]
            except subprocess.TimeoutExpired:
                process.kill()
                return f"does not export in {PATIENCE[runtime]:.0f} s beside the other lines"
        return f"does not export: {_reason(complaints, process.returncode)}" if process.returncode else ""


def _missing(libraries: Sequence[str]) -> list[str]:
    return [library for library in libraries if find_spec(library) is None]


def measure(bundle: Path, batch: int, length: int, rounds: int, threads: int) -> Measuring:
    """Begin to measure rows of `spry bench step`."""
    return Measuring(bundle, batch, length, rounds, threads)


def eager(name: str, bundle: Path, batch: int, length: int, rounds: int, threads: int) -> Row:
    """Measure one of `BASELINES`."""
    sizes = [str(number) for number in (batch, length, rounds, threads)]
    return _row([f"{__package__}.eager", str(bundle), name, *sizes], EAGER, name)


def _row(command: Sequence[str], runtime: str, step: str) -> Row:
    printed, reason = _run(command)
    if reason:
        return {"runtime": runtime, "step": step, "skipped": reason}
    row: Row = json.loads(printed.splitlines()[-1])
    return row


def _run(command: Sequence[str]) -> tuple[str, str]:
    """Run a module, and give what it prints, or the last line of its complaint if it fails."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    return (done.stdout, "") if not done.returncode else ("", _reason(done.stderr, done.returncode))


def _reason(complaints: str, status: int) -> str:
    last = [line.strip() for line in complaints.splitlines() if line.strip()][-1:]
    return (last or [f"exit status {status}"])[0]

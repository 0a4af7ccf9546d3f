"""ExecuTorch with XNNPACK: quantized products, and the methods of a segment share one file of weights."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from edge_client.arrays import Array, writable
from edge_client.bundle.manifest import ProgramSpec
from edge_client.runtimes.pte import PteRuntime
from edge_client.runtimes.runtime import CPU, Loaded

_KERNELS = ("lib/libexecutorch_kernels_quantized.so", "kernels/quantized/libquantized_ops_aot_lib.so")
"""Quantized embeddings live in a library of their own: its place from 1.5 on, and before."""


@cache
def _library() -> Any:
    """Import the extension module itself: `executorch.runtime` around it would import 140 MB more."""
    try:
        library = import_module("executorch.extension.pybindings._C")
    except ModuleNotFoundError:  # before 1.5
        library = import_module("executorch.extension.pybindings._portable_lib")
    root = Path(str(library.__file__)).parents[2]
    kernels = next((root / name for name in _KERNELS if (root / name).exists()), None)
    if kernels is not None:
        ctypes.CDLL(str(kernels))
    return library


class ExecutorchRuntime(PteRuntime):
    """The library of `executorch` itself, which takes and gives tensors of torch."""

    def __init__(self, folder: Path, *, threads: int = 0, device: str = CPU) -> None:
        super().__init__(folder, threads=threads, device=device)
        library = _library()
        if threads:
            torch.set_num_threads(threads)  # results are copied by torch, whose idle threads would spin
        if threads and library._threadpool_get_thread_count() != threads:  # noqa: SLF001
            library._unsafe_reset_threadpool(threads)  # noqa: SLF001

    def _load(self, program: ProgramSpec) -> Loaded:
        try:
            method = self._file(program.file).load_method(program.method)
        except RuntimeError as error:
            raise self._refused(program, error) from error

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            # The results lie in the method's own memory, which its next run writes again.
            tensors = [torch.from_numpy(writable(array)) for array in arrays]
            return [result.numpy() for result in method.call(tensors, clone_outputs=True)]

        return run

    def _open(self, path: Path) -> Any:
        return _library()._load_program(str(path))  # noqa: SLF001

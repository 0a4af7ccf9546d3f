"""ExecuTorch with XNNPACK: quantized products, and the methods of a segment share one file of weights."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from edge_client.arrays import Array
from edge_client.bundle.manifest import ProgramSpec
from edge_client.errors import BundleError
from edge_client.runtimes.runtime import CPU, Loaded, Runtime

_KERNELS = ("lib/libexecutorch_kernels_quantized.so", "kernels/quantized/libquantized_ops_aot_lib.so")
"""Quantized embeddings live in a library of their own: its place from 1.5 on, and before."""


@cache
def _library() -> Any:
    """The extension module itself: `executorch.runtime` around it would import 140 MB more."""
    try:
        library = import_module("executorch.extension.pybindings._C")
    except ModuleNotFoundError:  # before 1.5
        library = import_module("executorch.extension.pybindings._portable_lib")
    root = Path(str(library.__file__)).parents[2]
    kernels = next((root / name for name in _KERNELS if (root / name).exists()), None)
    if kernels is not None:
        ctypes.CDLL(str(kernels))
    return library


class ExecutorchRuntime(Runtime):
    """One file per segment, opened once for all of its methods that are loaded."""

    def __init__(self, folder: Path, *, threads: int = 0, device: str = CPU) -> None:
        super().__init__(folder, threads=threads, device=device)
        self._files: dict[str, Any] = {}
        library = _library()
        if threads:
            torch.set_num_threads(threads)  # results are copied by torch, whose idle threads would spin
        if threads and library._threadpool_get_thread_count() != threads:  # noqa: SLF001
            library._unsafe_reset_threadpool(threads)  # noqa: SLF001

    def _load(self, program: ProgramSpec) -> Loaded:
        try:
            method = self._file(program.file).load_method(program.method)
        except RuntimeError as error:
            self._close_unused()
            raise BundleError(
                f"ExecuTorch cannot load {program.method} of {program.file}: {str(error).splitlines()[0]}; the bundle "
                "is damaged, or was written by a newer executorch than the one installed here"
            ) from error

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            # The results lie in the method's own memory, which its next run writes again.
            return [result.numpy() for result in method.call([_tensor(array) for array in arrays], clone_outputs=True)]

        return run

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self.folder / name
            if not path.is_file():
                raise BundleError(f"{name} is missing from the bundle {self.folder}; copy it again")
            self._files[name] = _library()._load_program(str(path))  # noqa: SLF001
        return self._files[name]

    def release(self, program: ProgramSpec) -> None:
        super().release(program)
        self._close_unused()

    def close(self) -> None:
        super().close()
        self._close_unused()

    def _close_unused(self) -> None:
        """An open file holds its mapping as long as it is referenced."""
        used = {file for file, _ in self._loaded}
        self._files = {name: opened for name, opened in self._files.items() if name in used}


def _tensor(array: Array) -> torch.Tensor:
    """A tensor over the array's own memory; a read-only array is copied, since tensors are always writable."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())

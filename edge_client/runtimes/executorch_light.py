"""ExecuTorch without torch: the package `executorch-numpy-runtime`, which takes and gives arrays.

Files are opened by their paths: handed over as bytes they would be copied, and stay in memory beside what XNNPACK has
packed of them. Its ExecuTorch 1.3.1 frees what XNNPACK was given once a program is loaded, so that bundles must leave
all that XNNPACK does not pack to ExecuTorch (`export.lower.executorch.partition`); the self-test refuses others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from edge_client.arrays import Array, writable
from edge_client.bundle.manifest import ProgramSpec
from edge_client.runtimes.pte import PteRuntime
from edge_client.runtimes.runtime import CPU, Loaded

_library: Any = import_module("executorch_numpy_runtime")  # which Pythons before 3.12 lack
_THREAD_POOL = "_ZN10executorch9extension10threadpool14get_threadpoolEv"
_THREADS = "_ZNK10executorch9extension10threadpool10ThreadPool16get_thread_countEv"
_RESET = "_ZN10executorch9extension10threadpool10ThreadPool24_unsafe_reset_threadpoolEj"


class LightExecutorchRuntime(PteRuntime):
    """A program is loaded by its first run: the package has no call for that alone."""

    def __init__(self, folder: Path, *, threads: int = 0, device: str = CPU) -> None:
        super().__init__(folder, threads=threads, device=device)
        if threads:
            _set_threads(threads)

    def _load(self, program: ProgramSpec) -> Loaded:
        self._method(program)

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            method = self._method(program)
            try:
                return method([writable(array) for array in arrays])
            except _library.ExecuTorchError as error:
                raise self._refused(program, error) from error

        return run

    def _method(self, program: ProgramSpec) -> Any:
        """Looked up for each run, so that nothing but `_files` holds a file."""
        try:
            return self._file(program.file).load_method(program.method)
        except _library.ExecuTorchError as error:
            raise self._refused(program, error) from error

    def _open(self, path: Path) -> Any:
        return _library.Runtime().load_program(str(path))

    def release(self, program: ProgramSpec) -> None:
        """Release a file's methods together; those still wanted are loaded again by their next run."""
        if (program.file, program.method) in self._loaded:
            self._files.pop(program.file, None)
        super().release(program)


def _set_threads(threads: int) -> None:
    """Set threads by ExecuTorch's own function, which the package does not wrap; without it, all cores are used."""
    functions = ctypes.CDLL(str(import_module("executorch_numpy_runtime._core").__file__))
    try:
        pool, count, reset = (functions[name] for name in (_THREAD_POOL, _THREADS, _RESET))
    except AttributeError:
        return
    pool.restype = ctypes.c_void_p
    count.argtypes, count.restype = [ctypes.c_void_p], ctypes.c_size_t
    reset.argtypes, reset.restype = [ctypes.c_void_p, ctypes.c_uint32], ctypes.c_bool
    the_pool = pool()
    if count(the_pool) != threads:
        reset(the_pool, threads)

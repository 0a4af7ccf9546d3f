"""TorchScript: torch on the CPU, or on the GPU of a Jetson."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from edge_client.arrays import Array
from edge_client.bundle.manifest import ProgramSpec
from edge_client.errors import BundleError, SpryError
from edge_client.runtimes.runtime import CPU, Loaded, Runtime

# The library's types are mostly unknown to checkers; what crosses this module's border is typed.
pt: Any = torch


class TorchscriptRuntime(Runtime):
    """The programs of one file share its weights, which go when the last of them is released."""

    def __init__(self, folder: Path, *, threads: int = 0, device: str = CPU) -> None:
        super().__init__(folder, threads=threads, device=device)
        if device.startswith("cuda") and not pt.cuda.is_available():
            raise SpryError(f"the device {device} was asked for, but torch {pt.__version__} finds no CUDA; use cpu")
        self._modules: WeakValueDictionary[str, Any] = WeakValueDictionary()
        if threads:
            pt.set_num_threads(threads)

    def _load(self, program: ProgramSpec) -> Loaded:
        module = self._module(program.file)
        if not hasattr(module, program.method):
            raise BundleError(f"{program.file} has no method {program.method}; export the bundle again")

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            # Rewriting graphs gains nothing on the CPU and doubles the time of a first run; a GPU gets fused kernels.
            with pt.inference_mode(), pt.jit.optimized_execution(self.device != CPU):
                results = getattr(module, program.method)(*(self._tensor(array) for array in arrays))
                return [result.cpu().numpy() for result in results]

        return run

    def _module(self, file: str) -> Any:
        module = self._modules.get(file)
        if module is not None:
            return module
        path = self.folder / file
        if not path.is_file():
            raise BundleError(f"{file} is missing from the bundle {self.folder}; copy it again")
        try:
            module = pt.jit.load(str(path), map_location=self.device)
        except RuntimeError as error:
            raise BundleError(
                f"torch {pt.__version__} cannot load {file}: {str(error).strip().splitlines()[0]}; "
                "the bundle is damaged or needs a newer torch"
            ) from error
        self._modules[file] = module
        return module

    def _tensor(self, array: Array) -> Any:
        return pt.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)

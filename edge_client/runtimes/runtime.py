"""What runs the programs of a bundle: one interface, one small module per inference library.

    with open_runtime("onnx", folder) as runtime:
        outputs = runtime.run(program, {"hidden": hidden, ...})

A library is imported only when its runtime is opened. A new runtime is one module here and one row in the table below
(and, on the exporting side, one module in `export.lower`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.manifest import ProgramSpec, TensorSpec
from edge_client.distribution import install_command
from edge_client.errors import ProgramInputError, RuntimeMissing, SpryError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CPU", "RUNTIMES", "Loaded", "Requirement", "Runtime", "accelerated", "available", "chosen",
    "open_runtime", "requirement",
]  # fmt: skip

CPU = "cpu"

Loaded = Callable[[Sequence[Array]], Sequence[Array]]
"""A loaded program: inputs to outputs, both in the program's order."""


class Runtime(ABC):
    """Loads and runs programs of one bundle. Not for use by several threads at once."""

    def __init__(self, folder: Path, *, threads: int = 0, device: str = CPU) -> None:
        """`threads` of 0 leaves the number to the library; arrays come from the CPU and go back there."""
        self.folder = Path(folder)
        self.threads = threads
        self.device = device
        self._loaded: dict[tuple[str, str], Loaded] = {}

    @abstractmethod
    def _load(self, program: ProgramSpec) -> Loaded:
        """Load a program; what it returns holds whatever must stay in memory."""

    def load(self, program: ProgramSpec) -> None:
        """Load a program before its first run."""
        key = _key(program)
        if key not in self._loaded:
            self._loaded[key] = self._load(program)

    def run(self, program: ProgramSpec, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a program on named inputs, loading it if it is not loaded yet."""
        arrays = _checked(program, inputs)
        self.load(program)
        outputs = self._loaded[_key(program)](arrays)
        return {spec.name: output for spec, output in zip(program.outputs, outputs, strict=True)}

    def release(self, program: ProgramSpec) -> None:
        """Free a program's memory; the next run loads it again."""
        self._loaded.pop(_key(program), None)

    def close(self) -> None:
        """Free everything; the runtime may be used again all the same."""
        self._loaded.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _key(program: ProgramSpec) -> tuple[str, str]:
    return program.file, program.method


def _checked(program: ProgramSpec, inputs: Mapping[str, Array]) -> list[Array]:
    """The inputs in the program's order, contiguous."""
    expected = [spec.name for spec in program.inputs]
    missing = [name for name in expected if name not in inputs]
    unknown = [name for name in inputs if name not in expected]
    if missing or unknown:
        told = (("missing", missing), ("not expected", unknown))
        problems = "; ".join(f"{what}: {', '.join(names)}" for what, names in told if names)
        raise ProgramInputError(f"the inputs of {program.name} do not fit: {problems}")
    return [_checked_array(program, spec, inputs[spec.name]) for spec in program.inputs]


def _checked_array(program: ProgramSpec, spec: TensorSpec, value: Array) -> Array:
    array = np.asarray(value)
    if array.dtype != spec.dtype or array.shape != tuple(spec.shape):
        raise ProgramInputError(
            f"input {spec.name} of {program.name} must be {spec.dtype} {list(spec.shape)}, "
            f"got {array.dtype} {list(array.shape)}"
        )
    return np.ascontiguousarray(array)


class Requirement(NamedTuple):
    """What must be installed for a runtime."""

    library: str
    """What must be importable."""
    extra: str
    """The extra of this distribution that installs it."""


class _Entry(NamedTuple):
    module: str
    type: str
    requirement: Requirement
    accelerated: bool = False
    """Whether it runs on anything but the CPU."""


_RUNTIMES = {
    "onnx": _Entry("edge_client.runtimes.onnx", "OnnxRuntime", Requirement("onnxruntime", "onnx")),
    "executorch": _Entry(
        "edge_client.runtimes.executorch", "ExecutorchRuntime", Requirement("executorch", "executorch")
    ),
    "torchscript": _Entry(
        "edge_client.runtimes.torchscript", "TorchscriptRuntime", Requirement("torch", "torch"), accelerated=True
    ),
}


RUNTIMES = tuple(_RUNTIMES)


def requirement(name: str) -> Requirement:
    """What a runtime of the table needs."""
    return _RUNTIMES[name].requirement


def command_for(names: Iterable[str]) -> str:
    """The command that installs the first of the runtimes that is in the table."""
    known = [name for name in names if name in _RUNTIMES] or RUNTIMES
    return install_command(requirement(known[0]).extra)


def available() -> list[str]:
    """The runtimes whose library is installed."""
    return [name for name in RUNTIMES if find_spec(requirement(name).library) is not None]


def accelerated(name: str) -> bool:
    """Whether a runtime of the table takes a GPU."""
    return _RUNTIMES[name].accelerated


def chosen(wanted: str | None, device: str = CPU) -> list[str]:
    """The runtimes that this machine can offer: those installed, or one of them, and on a GPU those that take it."""
    found = available()
    if wanted is not None:
        if wanted not in RUNTIMES:
            raise SpryError(f"unknown runtime {wanted!r}; expected one of {', '.join(RUNTIMES)}")
        found = [name for name in found if name == wanted]
    if not found:
        what = f"the runtime {wanted} is not installed" if wanted else "no runtime is installed"
        raise SpryError(f"{what}: {command_for([wanted] if wanted else RUNTIMES)}")
    if device == CPU:
        return found
    fitting = [name for name in found if accelerated(name)]
    if not fitting:
        raise SpryError(
            f"nothing here runs on {device}: {' and '.join(found)} use the CPU alone; install a torch with CUDA and "
            "take --runtime torchscript"
        )
    return fitting


def open_runtime(name: str, folder: Path, *, threads: int = 0, device: str = CPU) -> Runtime:
    """Open a runtime on a bundle's folder; TorchScript also takes a GPU, such as `cuda`."""
    entry = _RUNTIMES.get(name)
    if entry is None:
        raise SpryError(f"unknown runtime {name!r}; expected one of {', '.join(_RUNTIMES)}")
    if device != CPU and not accelerated(name):
        raise SpryError(
            f"the device {device} was asked for, but the runtime {name} runs on the CPU alone; take torchscript, or cpu"
        )
    try:
        kind: type[Runtime] = getattr(import_module(entry.module), entry.type)
    except ImportError as error:
        raise RuntimeMissing(f"the runtime {name}", entry.requirement.extra, str(error)) from error
    return kind(folder, threads=threads, device=device)

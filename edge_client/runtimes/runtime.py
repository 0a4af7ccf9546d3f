"""Run the programs of a bundle: one interface, one small module per inference library.

    with open_runtime("onnx", folder) as runtime:
        outputs = runtime.run(program, {"hidden": hidden, ...})

A library is imported only when its runtime is opened. A new runtime is one module here and one row in the table below
(and, on the exporting side, one module in `export.lower`); another distribution adds one by an entry point of the group
`spry.runtimes`, which names its `Listing`.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from edge_client import plugins
from edge_client.arrays import Array
from edge_client.bundle.manifest import ProgramSpec, TensorSpec
from edge_client.distribution import NAME, install_command
from edge_client.errors import BundleError, ProgramInputError, RuntimeMissing, SpryError
from edge_client.memory import trim_memory

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CPU", "RUNTIMES", "Listing", "Loaded", "Runtime", "available", "chosen", "open_runtime", "require_publisher",
    "unasked",
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
        try:
            outputs = self._loaded[_key(program)](arrays)
        except Exception as error:  # libraries' errors have no common type
            raise _failed(program, error) from error
        return _named(program, outputs)

    def set_aside(self, program: ProgramSpec) -> None:  # noqa: B027 -- most runtimes load nothing twice
        """Free a program that is quickly loaded again: one that goes backwards does not run again in its step."""

    def holds(self, program: ProgramSpec) -> bool:
        """Tell whether a program is loaded."""
        return _key(program) in self._loaded

    def release(self, program: ProgramSpec) -> None:
        """Free a program's memory; the next run loads it again."""
        self._loaded.pop(_key(program), None)

    def keep(self, programs: Iterable[ProgramSpec]) -> None:
        """Free all programs but these: what another round's cut or shape needed would add up."""
        unwanted = self._loaded.keys() - {_key(program) for program in programs}
        if unwanted:
            self._free(unwanted)
            trim_memory()  # or what is loaded next lies beside the holes that these leave

    def _free(self, programs: Iterable[tuple[str, str]]) -> None:
        for key in programs:
            del self._loaded[key]

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
    """Check the inputs and return them in the program's order, contiguous."""
    expected = {spec.name for spec in program.inputs}
    if expected.symmetric_difference(inputs):
        missing = [spec.name for spec in program.inputs if spec.name not in inputs]
        unknown = [name for name in inputs if name not in expected]
        told = (("missing", missing), ("not expected", unknown))
        problems = "; ".join(f"{what}: {', '.join(names)}" for what, names in told if names)
        raise ProgramInputError(f"the inputs of {program.name} do not fit: {problems}")
    return [_checked_array(program, spec, inputs[spec.name]) for spec in program.inputs]


def _checked_array(program: ProgramSpec, spec: TensorSpec, value: Array) -> Array:
    array = np.asarray(value)
    if array.dtype != _dtype(spec.dtype) or array.shape != tuple(spec.shape):
        raise ProgramInputError(
            f"input {spec.name} of {program.name} must be {spec.dtype} {list(spec.shape)}, "
            f"got {array.dtype} {list(array.shape)}"
        )
    return array if array.flags.c_contiguous and array.ndim else np.ascontiguousarray(array)


def _named(program: ProgramSpec, outputs: Sequence[Array]) -> dict[str, Array]:
    """Return the outputs by name; refuse those that are not as in the manifest, before anything is computed of them."""
    if len(outputs) != len(program.outputs):
        raise BundleError(
            f"{program.name} gives {len(outputs)} outputs where its manifest says {len(program.outputs)}; "
            "export the bundle again"
        )
    for spec, output in zip(program.outputs, outputs, strict=True):
        if output.shape != tuple(spec.shape) or output.dtype != _dtype(spec.dtype):
            raise BundleError(
                f"{spec.name} of {program.name} comes as {output.dtype} {list(output.shape)} where its manifest says "
                f"{spec.dtype} {list(spec.shape)}; export the bundle again"
            )
    return {spec.name: output for spec, output in zip(program.outputs, outputs, strict=True)}


def _failed(program: ProgramSpec, error: Exception) -> SpryError:
    """Make one line of what a library raised while a program ran."""
    why = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError) or _NO_MEMORY.search(why):
        return SpryError(f"out of memory in {program.name}: join with --low-memory, or close other programs")
    return BundleError(f"{program.name} cannot be run: {why[:_TOLD]}; export the bundle again, or take another runtime")


_NO_MEMORY = re.compile(r"bad_alloc|alloc\w* (?:\w+ )?memory|out of memory|not enough memory", re.IGNORECASE)
"""The wordings of libraries that have no type for it."""
_TOLD = 300
"""Characters of what a library says: some print a stack."""
_dtype = cache(np.dtype)
"""Cached by name: a program that generates has hundreds of inputs for each token."""


@dataclass(frozen=True)
class Listing:
    """A runtime in the table: what must be known of it before its library is imported."""

    opens: str
    """`module:Class` of its `Runtime`."""
    library: str
    """The module that must be importable."""
    extra: str = ""
    """The extra of the distribution below that installs it; empty: that alone does."""
    distribution: str = NAME
    accelerated: bool = False
    """True if it runs on anything but the CPU."""
    runs_code: bool = False
    """True if its files can do whatever their user can: it is used only when it is named, and on devices only from
    bundles whose publisher they trust."""
    lowering: str = ""
    """`module:LOWERING` of an `export.lower.target.Lowering`; that of `export.lower.NAME` when left out."""
    python: tuple[int, int] = (3, 10)
    """The oldest Python that its library is made for."""
    light: Listing | None = None
    """A runtime for the same files that needs much less, and is used where this one's library is not installed."""

    @property
    def installed(self) -> bool:
        return self._is_there or (self.light is not None and self.light.installed)

    @property
    def _is_there(self) -> bool:
        return find_spec(self.library) is not None

    @property
    def used(self) -> Listing:
        """The installed one of this and the light one; where neither is, the one that a device would install."""
        if self.light is None or self._is_there:
            return self
        return self.light if self.light.installed or sys.version_info >= self.light.python else self

    @property
    def mark(self) -> str:
        """Another one once another version of its library is installed."""
        spec = find_spec(self.library)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        times = [Path(place).stat().st_mtime_ns for place in places if place is not None and Path(place).exists()]
        return f"{self.library} of {max(times, default=0)}"  # a version costs five megabytes to look up

    def command(self, *, again: bool = False) -> str:
        """Give the command that installs a runtime."""
        used = self.used
        return install_command(used.extra, used.distribution, again=again)


RUNTIMES = plugins.Registry(
    plugins.RUNTIMES,
    lambda listing: isinstance(listing, Listing),
    {
        "onnx": Listing("edge_client.runtimes.onnx:OnnxRuntime", "onnxruntime", "onnx"),
        "executorch": Listing(
            "edge_client.runtimes.executorch:ExecutorchRuntime",
            "executorch",
            "executorch",
            light=Listing(
                "edge_client.runtimes.executorch_light:LightExecutorchRuntime",
                "executorch_numpy_runtime",
                "executorch-light",
                python=(3, 12),
            ),
        ),
        "torchscript": Listing(
            "edge_client.runtimes.torchscript:TorchscriptRuntime", "torch", "torch", accelerated=True, runs_code=True
        ),
    },
)


def command_for(names: Iterable[str]) -> str:
    """Return the command that installs the first of the runtimes that is in the table."""
    known = [name for name in names if name in RUNTIMES] or [*RUNTIMES]
    return RUNTIMES[known[0]].command()


def available() -> list[str]:
    """Return the runtimes whose library is installed."""
    return [name for name, listing in RUNTIMES.items() if listing.installed]


def unasked() -> list[str]:
    """Keep the runtimes that are used without being named."""
    return [name for name in available() if not RUNTIMES[name].runs_code]


def require_publisher(names: Iterable[str], publisher: str | None) -> None:
    """Refuse runtimes whose files run code, where nobody vouches for the files."""
    code = [name for name in names if RUNTIMES[name].runs_code]
    if code and publisher is None:
        raise SpryError(
            f"files for {code[0]} can run any code, so it takes only signed bundles: pin the key of their publisher "
            "with --trust, or take another --runtime"
        )


def chosen(wanted: str | None, device: str = CPU) -> list[str]:
    """Return the runtimes that this machine can offer: those used unasked, or one by name; those for the GPU on one."""
    if wanted is not None:
        _check(wanted)
    names = unasked() if wanted is None else [wanted] if RUNTIMES[wanted].installed else []
    if not names:
        what = f"the runtime {wanted} is not installed" if wanted else "no runtime is installed"
        raise SpryError(f"{what}: {command_for([wanted] if wanted else RUNTIMES)}")
    if device == CPU:
        return names
    fitting = [name for name in names if RUNTIMES[name].accelerated]
    if not fitting:
        raise SpryError(
            f"nothing here runs on {device}: {' and '.join(names)} use the CPU alone; install a torch with CUDA and "
            "take --runtime torchscript"
        )
    return fitting


def open_runtime(name: str, folder: Path, *, threads: int = 0, device: str = CPU) -> Runtime:
    """Open a runtime on a bundle's folder; TorchScript also takes a GPU, such as `cuda`."""
    _check(name)
    listing = RUNTIMES[name]
    if device != CPU and not listing.accelerated:
        raise SpryError(
            f"the device {device} was asked for, but the runtime {name} runs on the CPU alone; take torchscript, or cpu"
        )
    used = listing.used
    try:
        kind: type[Runtime] = resolve_name(used.opens)
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # an interrupted import of a compiled library
            raise error.__cause__ from None
        raise RuntimeMissing(f"the runtime {name}", used.extra, str(error), used.distribution) from error
    return kind(folder, threads=threads, device=device)


def _check(name: str) -> None:
    if name not in RUNTIMES:
        raise SpryError(f"unknown runtime {name!r}; expected one of {', '.join(RUNTIMES)}")

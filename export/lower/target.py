"""Lower a segment's programs to a runtime's files. A new runtime is one module here and one in `edge_client.runtimes`.

A runtime of another distribution names its lowering in its `edge_client.runtimes.runtime.Listing`.

A lowering receives all programs of one segment at once (every kind, batch size and length), so that it can store the
segment's weights once. It decides how the operators of `export.graph.ops` are computed in the asked precision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from edge_client.bundle.manifest import Precision, ProgramSpec, TensorSpec
from edge_client.distribution import install_command
from edge_client.runtimes.processors import Processor, this_processor
from edge_client.runtimes.runtime import RUNTIMES
from export.dual.programs import Program
from export.errors import ExportError

__all__ = ["Linking", "Lowered", "Lowering", "Precision", "ProgramEntry", "Shaped", "linked_tensors", "lowering"]

STATE = "hidden"
"""The name of the state that a segment hands to the next."""


@dataclass(frozen=True)
class Shaped:
    """One program to lower: a kind at one batch size and length."""

    program: Program
    batch: int
    length: int

    @property
    def name(self) -> str:
        """Unique within a segment, and a valid method name."""
        directions = f"_k{self.program.directions}" if self.program.directions else ""
        return f"{self.program.kind}_{self.batch}x{self.length}{directions}"


@dataclass(frozen=True)
class ProgramEntry:
    """The place of a lowered program."""

    file: str
    method: str = ""
    """The method of a file that holds several programs."""


@dataclass
class Lowered:
    """A segment's files, as they will lie in the bundle, and its programs' entries by `Shaped.name`."""

    files: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, ProgramEntry] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)
    """Large ops that the runtime would run with a slow kernel, as 'op of program: why'."""


class Lowering(Protocol):
    """A runtime's lowering, which its module offers under the name LOWERING."""

    def lower(
        self,
        segment: str,
        programs: Sequence[Shaped],
        stored: Mapping[str, Tensor],
        precision: Precision,
        *,
        tied: Collection[str] = (),
    ) -> Lowered:
        """Lower a segment.

        `stored` holds the frozen weights and constants that its programs name, in float32; `tied` names weights that
        one segment looks up and another multiplies by, which a runtime may store once for both.
        """
        ...

    def dequantized(self, name: str, weight: Tensor, precision: Precision, *, embedding: bool) -> Tensor:
        """Return the weight [out, in] as the runtime will see it, in float32: the reference of verification.

        `embedding` is true of a table that is only looked up.
        """
        ...

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that wrote the files, by which they are kept; and its own, from elsewhere."""
        ...


@runtime_checkable
class ForProcessors(Protocol):
    """A lowering whose int8 products are not the same for all processors."""

    def on(self, processor: Processor, *, fine: bool = False) -> Lowering:
        """Return the lowering for one of them; `fine` for models that it is too coarse for."""
        ...


@runtime_checkable
class Linking(Protocol):
    """A lowering that makes one program of a whole chain's, for what runs so often that each call's price counts."""

    def link(self, programs: Sequence[tuple[ProgramSpec, bytes]]) -> bytes:
        """Link the programs of a chain, in their order, to one for the folder that is named as the runtime.

        Its inputs and outputs are those of `linked_tensors`.
        """
        ...


def linked_tensors(programs: Sequence[ProgramSpec]) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of a chain's programs together, without what one hands to the next."""
    inputs = {spec.name: spec for program in programs for spec in program.inputs if spec.name != STATE}
    outputs = {spec.name: spec for program in programs for spec in program.outputs if spec.name != STATE}
    return tuple(inputs.values()), tuple(outputs.values())


def lowering(runtime: str, processor: str = "", *, fine: bool = False) -> Lowering:
    """Return the lowering of a runtime of the table, for a processor if one is asked for, and as fine as it can."""
    where = RUNTIMES[runtime].lowering or f"export.lower.{runtime}.lowering:LOWERING"
    try:
        resolved: Lowering = resolve_name(where)
    except ModuleNotFoundError as error:
        raise ExportError(f"the target {runtime} needs {error.name}: {install_command('export')}") from error
    if not processor or not isinstance(resolved, ForProcessors):
        return resolved
    return resolved.on(processor, fine=fine)  # type: ignore[arg-type]


def processor_for(runtime: str, processor: Processor | Literal["auto"], precision: Precision) -> str:
    """Choose the processor that the runtime's files are made for; empty where they are the same for all."""
    if precision != "int8" or not isinstance(lowering(runtime), ForProcessors):
        return ""
    return this_processor() if processor == "auto" else processor

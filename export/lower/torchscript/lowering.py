"""TorchScript: one file per segment, one method per program, every weight stored once as an attribute of the module.

Programs are traced with plain aten ops only, so that a file loads with torch alone, on the CPU and on CUDA.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version

import torch
from torch import Tensor

from export.lower.target import Lowered, Precision, ProgramEntry, Shaped
from export.lower.torchscript.archive import archive
from export.lower.torchscript.methods import Methods
from export.lower.torchscript.weights import quantized_linear, quantized_table

__all__ = ["LOWERING", "TorchscriptLowering"]


class TorchscriptLowering:
    """See `export.lower.target.Lowering`."""

    def lower(
        self,
        segment: str,
        programs: Sequence[Shaped],
        stored: Mapping[str, Tensor],
        precision: Precision,
        *,
        tied: Collection[str] = (),
    ) -> Lowered:
        """Lower a segment; a tied weight is stored in each of its segments, since a file has no others beside it."""
        methods = Methods(stored, precision)
        ordered = sorted(programs, key=lambda shaped: shaped.name)
        for shaped in ordered:
            methods.add(shaped.name, shaped.program)
        file = f"torchscript/{segment}.pt"
        return Lowered(
            {file: archive(methods.module)}, {shaped.name: ProgramEntry(file, shaped.name) for shaped in ordered}
        )

    def dequantized(self, name: str, weight: Tensor, precision: Precision, *, embedding: bool) -> Tensor:
        quantize = quantized_table if embedding else quantized_linear
        return quantize(weight, precision).float32()

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "torchao": version("torchao")}


LOWERING = TorchscriptLowering()

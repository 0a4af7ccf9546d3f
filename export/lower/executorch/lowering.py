"""ExecuTorch with XNNPACK: one file per segment, one method per program, every weight stored once.

The codes that exact gradients multiply with are stored once more (`partition`).

`rewrite` puts a program's graph into formulations that the delegate takes (`formulations`); `translate` makes an edge
program of it, its frozen weights in int8 or int4 (`graph`, `products`, `weights`); `partition` hands it to XNNPACK and
finds what is left to slow kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version

import torch
from torch import Tensor
from torch.export import ExportedProgram

from export.lower.target import Lowered, Precision, ProgramEntry, Shaped

with warnings.catch_warnings():  # the library's, about its own code
    warnings.simplefilter("ignore")
    from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig
    from executorch.exir.lowered_backend_module import LoweredBackendModule
    from executorch.exir.passes import MemoryPlanningPass

    from export.lower.executorch.graph import CONFIG, shapes_alone
    from export.lower.executorch.partition import SegmentPartitioner, undelegated
    from export.lower.executorch.rewrite import rewritten
    from export.lower.executorch.translate import StoredWeights, translated
    from export.lower.executorch.weights import effective, quantize, quantize_table

__all__ = ["LOWERING", "ExecuTorchLowering"]


_BORROWED_INPUTS = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False))
"""Programs read their inputs where the caller holds them, instead of copying them into memory of their own."""


class ExecuTorchLowering:
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
        weights = StoredWeights(stored, precision, tied)
        methods = {
            shaped.name: translated(*rewritten(shaped.program, stored, precision), weights)
            for shaped in sorted(programs, key=lambda shaped: shaped.name)
        }
        file = f"executorch/{segment}.pte"
        content, fallbacks = _emitted(methods)
        entries = {name: ProgramEntry(file, name) for name in methods}
        return Lowered({file: content}, entries, [f"{what} (in {segment}.{name})" for name, what in fallbacks])

    def dequantized(self, name: str, weight: Tensor, precision: Precision, *, embedding: bool) -> Tensor:
        if embedding:
            table = quantize_table(weight, precision)
            return weight if table is None else table.float32
        kind = effective(weight, precision)
        return weight if kind == "none" else quantize(weight, kind).float32

    def versions(self) -> dict[str, str]:
        return {"executorch": version("executorch"), "torch": torch.__version__}


def _emitted(methods: dict[str, ExportedProgram]) -> tuple[bytes, list[tuple[str, str]]]:
    """Emit one file with all methods; return what is left to slow kernels, by method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manager = EdgeProgramManager(methods, None, CONFIG)
        manager = manager.to_backend({name: SegmentPartitioner() for name in methods})
        programs = {name: manager.exported_program(name) for name in methods}
        fallbacks = [(name, what) for name, program in programs.items() for what in undelegated(program)]
        delegates = [part for program in programs.values() for part in _with_shapes_alone(program)]
        content = manager.to_executorch(_BORROWED_INPUTS).buffer
    # Caches of torch keep the delegates and all they refer to; at least their weights are let go.
    for program in [*methods.values(), *programs.values(), *(part.original_module for part in delegates)]:
        program.state_dict.clear()
    for part in delegates:
        if part.named_data_store_output is not None:
            part.named_data_store_output.buffers.clear()
    return content, fallbacks


def _with_shapes_alone(program: ExportedProgram) -> list[LoweredBackendModule]:
    """Replace the program's delegates by ones of shapes alone: each pass still to come runs their programs anew."""
    delegates = {
        name: part for name, part in program.graph_module.named_children() if isinstance(part, LoweredBackendModule)
    }
    for name, part in delegates.items():
        light = LoweredBackendModule(
            edge_program=shapes_alone(part.original_module),
            backend_id=part.backend_id,
            processed_bytes=part.processed_bytes,
            compile_specs=part.compile_specs,
            named_data_store_output=part.named_data_store_output,
        )
        light.meta = part.meta
        setattr(program.graph_module, name, light)
    return list(delegates.values())


LOWERING = ExecuTorchLowering()

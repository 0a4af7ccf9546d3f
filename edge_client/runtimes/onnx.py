"""ONNX Runtime: small, fast, and without torch in the process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnxruntime

from edge_client.arrays import Array
from edge_client.bundle.manifest import ProgramSpec
from edge_client.errors import BundleError
from edge_client.runtimes.runtime import Loaded, Runtime

# The library's types are mostly unknown to checkers; what crosses this module's border is typed.
ort: Any = onnxruntime

_ERRORS_ONLY = 3


@cache
def _share_allocator() -> None:
    """One arena for all sessions of the process: a chain then needs the memory of its largest program, not the sum."""
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT), None
    )


class OnnxRuntime(Runtime):
    """Sessions are set up for memory: mapped weights, one arena, no plans made ahead."""

    def _load(self, program: ProgramSpec) -> Loaded:
        _share_allocator()
        path = self.folder / program.file
        try:
            packs = b"MatMulNBits" in path.read_bytes()
            session = ort.InferenceSession(str(path), self._options(packs=packs), providers=["CPUExecutionProvider"])
        except FileNotFoundError as error:
            raise BundleError(f"{program.file} is missing from the bundle {self.folder}; copy it again") from error
        except Exception as error:  # its errors have no common type
            raise BundleError(
                f"ONNX Runtime {ort.__version__} cannot load {program.file}: {str(error).splitlines()[0]}; "
                "the bundle is damaged or needs a newer onnxruntime"
            ) from error
        names = [entry.name for entry in session.get_inputs()]

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            results: Sequence[Array] = session.run(None, dict(zip(names, arrays, strict=True)))
            return results

        return run

    def _options(self, *, packs: bool) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # The programs come as they should run: rewriting them gains nothing, and one of the rewrites
        # (SkipLayerNormalization) is far slower than what it replaces.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_pattern = False
        # What it calls reuse keeps a buffer for the next value of the same size, however far ahead that is: a step of
        # 24 blocks then takes nearly twice the memory. In-place operators and the arena do without.
        options.enable_mem_reuse = False
        options.add_session_config_entry("session.use_env_allocators", "1")
        # Products read the weights where they are mapped, at a few percent of time; only 4-bit ones need theirs packed.
        options.add_session_config_entry("session.disable_prepacking", "0" if packs else "1")
        return options

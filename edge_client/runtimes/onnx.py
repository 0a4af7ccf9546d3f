"""ONNX Runtime: small, fast, and without torch in the process."""

from __future__ import annotations

import operator
import platform
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime

from edge_client.arrays import Array
from edge_client.bundle.manifest import DECODE, PREFILL, ProgramSpec, TensorSpec
from edge_client.errors import BundleError, WrongResults
from edge_client.runtimes.onnx_weights import outside_weights, taking
from edge_client.runtimes.processors import Processor, exact, this_processor
from edge_client.runtimes.runtime import CPU, Loaded, Runtime

# The library's types are mostly unknown to checkers; what crosses this module's border is typed.
ort: Any = onnxruntime

_ERRORS_ONLY = 3
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_IN_BYTES, _IN_FLOATS = b"accuracy_level\x18\x04", b"accuracy_level\x18\x00"
"""The attribute by which a program sets the precision of its 4-bit products."""
_IN_BLOCKS = b".i4", b".i8"
"""The marks in the names of 4-bit weights, and of those in a file's own blocks of 8 bits."""
_IN_INT8 = b"MatMulIntegerToFloat"
_FEW_BYTES = 4_000_000
"""The bytes of a segment's weights up to which a packed copy is worth its memory."""
_CACHES, _WHOLE = ("key.", "value."), 4
_SIGNED = b".s8"
"""The mark in the names of weights in signed bytes."""


@cache
def _share_allocator() -> None:
    """Share one arena among all sessions: a chain then needs the memory of its largest program, not the sum."""
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT), None
    )


def _for_this_processor(model: bytes) -> bytes:
    """Compute 4-bit weights' products in floats on x86: those in bytes, no faster there, pack a sum with each block.

    These sums make the loaded weights a quarter larger. On ARM there are none, and bytes are several times as fast.
    """
    return model.replace(_IN_BYTES, _IN_FLOATS) if platform.machine() in ("x86_64", "AMD64") else model


def _is_read_often(program: ProgramSpec, model: bytes, path: Path) -> bool:
    """Tell whether each product packs its weight anew for every piece of a batch, and is small enough to stay so."""
    if program.directions < 2 or _IN_INT8 not in model:
        return False
    return sum(file.stat().st_size for file in path.parent.glob("*.bin")) <= _FEW_BYTES


def _writes_caches(program: ProgramSpec) -> bool:
    """Tell whether a program's keys and values come out in the memory where they are given: whole, with their batch."""
    caches = [spec for spec in program.outputs if spec.name.startswith(_CACHES)]
    return program.kind in (PREFILL, DECODE) and any(len(spec.shape) == _WHOLE for spec in caches)


class _InPlace:
    """A session whose caches are input and output in the same memory, bound once for all its runs."""

    def __init__(self, session: Any, program: ProgramSpec) -> None:
        self._session = session
        self._names = [entry.name for entry in session.get_inputs()]
        self._results = [entry.name for entry in session.get_outputs()]
        self._program = program
        self._bound: list[Array] = []
        self._outputs: list[Array] = []
        self._binding: Any = None

    def run(self, arrays: Sequence[Array]) -> Sequence[Array]:
        if len(self._bound) != len(arrays) or any(map(operator.is_not, self._bound, arrays)):
            self._bind(arrays)
        self._session.run_with_iobinding(self._binding)
        bound = {id(array) for array in self._bound}
        return [output if id(output) in bound else np.copy(output) for output in self._outputs]

    def _bind(self, arrays: Sequence[Array]) -> None:
        self._binding, self._bound = self._session.io_binding(), list(arrays)
        given = {spec.name: array for spec, array in zip(self._program.inputs, arrays, strict=True)}
        outputs = self._program.outputs
        self._outputs = [given.get(spec.name, _empty(spec)) for spec in outputs]
        for name, array in zip(self._names, arrays, strict=True):
            self._binding.bind_input(name, CPU, 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in zip(self._results, self._outputs, strict=True):
            self._binding.bind_output(name, CPU, 0, array.dtype, array.shape, array.ctypes.data)


def _empty(spec: TensorSpec) -> Array:
    return np.empty(spec.shape, spec.dtype)


def _session(model: bytes, options: Any) -> Any:
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OnnxRuntime(Runtime):
    """Sessions are set up for memory: mapped weights, one arena, no plans made ahead."""

    def __init__(self, folder: Path, *, threads: int = 0, device: str = CPU) -> None:
        super().__init__(folder, threads=threads, device=device)
        self._quickly_loaded: set[str] = set()
        """Files of programs that hold much and load at the speed of memory."""
        self._sessions: WeakValueDictionary[bytes, Any] = WeakValueDictionary()
        """Sessions by model: programs that differ in their weights alone share one."""
        self._mapped: WeakValueDictionary[Path, Array] = WeakValueDictionary()
        """Files of weights, each mapped once."""

    @cached_property
    def _processor(self) -> Processor:
        return this_processor()

    def set_aside(self, program: ProgramSpec) -> None:
        """Weights in blocks are packed or mapped here beside those of the same segment's forward."""
        if program.file in self._quickly_loaded:
            self.release(program)

    def _load(self, program: ProgramSpec) -> Loaded:
        _share_allocator()
        path = self.folder / program.file
        try:
            model = path.read_bytes()
            generates, is_linked = program.kind in (PREFILL, DECODE), _writes_caches(program)
            packs = b"MatMulNBits" in model or program.kind == DECODE
            packs = packs or _is_read_often(program, model, path)
            options = self._options(packs=packs)
            if generates and not is_linked:
                # Sessions of a chain each have threads, which would go on spinning while the next one works.
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            if program.kind == DECODE:
                # One row at a time, weights are read faster packed than where they are mapped, and what is packed
                # takes the place of what was mapped. A table that is turned for its product is turned once, and what
                # all blocks compute alike is computed once. For the few passes of a prompt that would take longer than
                # it saves.
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
            options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
            written = model if program.kind == DECODE else _for_this_processor(model)
            weights: dict[str, Array] = {}
            if packs or generates:
                session = _session(written, options)
            else:
                session, weights = self._shared(written, options, path.parent)
        except FileNotFoundError as error:
            raise BundleError(f"{program.file} is missing from the bundle {self.folder}; copy it again") from error
        except Exception as error:  # its errors have no common type
            raise BundleError(
                f"ONNX Runtime {ort.__version__} cannot load {program.file}: {str(error).splitlines()[0]}; "
                "the bundle is damaged or needs a newer onnxruntime"
            ) from error
        if _SIGNED in model and not exact("vnni", self._processor):
            raise WrongResults(
                f"{program.file} is for another processor: its int8 products overflow on this one, which has no VNNI; "
                f"export the bundle again with --processor {self._processor}, or for another --target"
            )
        if any(name in model for name in _IN_BLOCKS):
            self._quickly_loaded.add(program.file)
        names = [entry.name for entry in session.get_inputs()]
        if is_linked:
            return _InPlace(session, program).run

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            results: Sequence[Array] = session.run(None, {**weights, **dict(zip(names, arrays, strict=True))})
            return results

        return run

    def _shared(self, model: bytes, options: Any, folder: Path) -> tuple[Any, dict[str, Array]]:
        """Return a session that programs of equal models share, and the weights to give it."""
        outside = outside_weights(model)
        if outside is None:
            return _session(model, options), {}
        session = self._sessions.get(model)
        if session is None:
            session = self._sessions[model] = _session(taking(model, outside), options)
        return session, {weight.name: weight.of(self._file(folder / weight.file)) for weight in outside}

    def _file(self, path: Path) -> Array:
        file = self._mapped.get(path)
        if file is None:
            file = self._mapped[path] = np.memmap(path, np.uint8, "r")
        return file

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
        # In the order of the file, which frees values early; the library's own order computes all parts of a
        # vocabulary before it sums up any.
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.add_session_config_entry("session.use_env_allocators", "1")
        # It would dequantize a weight for each of its two readers, and the second time late.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # Products read the weights where they are mapped, at a few percent of time; only 4-bit ones need theirs packed,
        # and those that several directions read again and again, piece by piece.
        options.add_session_config_entry("session.disable_prepacking", "0" if packs else "1")
        return options

"""A bundle's `prefill` and `decode` programs, run over a cache of keys and values that stays in this process.

Programs read the cache where it lies. Some write new tokens' keys and values into it; others give them back, to be
written into it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.arrays import Array, Arrays, Floats
from edge_client.bundle.manifest import DECODE, PREFILL, Manifest, ProgramKind, ProgramSpec
from edge_client.bundle.names import WEIGHT
from edge_client.errors import BundleError, ProgramInputError
from edge_client.step.stepper import Programs

_KEY, _VALUE = "key.", "value."


@dataclass(frozen=True)
class _Step:
    """A program with what never changes of its inputs, and what does by name."""

    program: ProgramSpec
    fixed: dict[str, Array]
    given: tuple[str, ...]


@dataclass(frozen=True)
class _Tokens:
    """The inputs that tell a kind of program of new tokens, in arrays that stay where they are."""

    ids: Array
    positions: Array
    last: Array

    @staticmethod
    def of(count: int) -> _Tokens:
        return _Tokens(*(np.zeros(shape, np.int64) for shape in ((1, count), (1, count), (1,))))

    def named(self) -> dict[str, Array]:
        return {"input_ids": self.ids, "position_ids": self.positions, "last": self.last}


class Decoder:
    """Reads tokens, and predicts what follows the last of them.

    Args:
        manifest: what the bundle holds.
        runtime: where programs run.
        name: the runtime's name in the manifest.
        weights: of the adapter, by parameter.
    """

    def __init__(self, manifest: Manifest, runtime: Programs, name: str, weights: Arrays) -> None:
        spec = manifest.runtimes.get(name)
        if manifest.generation is None or spec is None or not spec.generation:
            raise BundleError(
                f"the bundle has no programs that generate text with {name}: export it with --task causal-lm "
                f"--generate 512 --target {name}"
            )
        self.length = manifest.generation.length
        self.chunk = manifest.generation.chunk
        self.position = 0
        """Tokens read so far."""
        self._runtime = runtime
        self._steps: dict[ProgramKind, list[_Step]] = {
            kind: [_step(program, weights) for program in spec.generation if program.kind == kind]
            for kind in (PREFILL, DECODE)
        }
        self._tokens = {PREFILL: _Tokens.of(self.chunk), DECODE: _Tokens.of(1)}
        self._cache = {
            tensor.name: np.zeros(tensor.shape, tensor.dtype)
            for program in spec.generation
            if program.kind == DECODE
            for tensor in program.inputs
            if tensor.name.startswith((_KEY, _VALUE))
        }

    @property
    def room(self) -> int:
        """Tokens that can still be read."""
        return self.length - self.position

    @property
    def cache_bytes(self) -> int:
        return sum(array.nbytes for array in self._cache.values())

    def read(self, tokens: Sequence[int]) -> Floats:
        """Read tokens behind those before; the logits of what follows the last one."""
        if not tokens:
            raise ProgramInputError("expected tokens to read, got none")
        if len(tokens) > self.room:
            raise ProgramInputError(
                f"the cache holds {self.length} tokens and has {self.position}, got {len(tokens)} more: begin anew "
                "with fewer, or export the bundle with a larger --generate"
            )
        if len(tokens) == 1:
            return self._run(DECODE, tokens)
        logits = np.empty(0, np.float32)
        for start in range(0, len(tokens), self.chunk):
            logits = self._run(PREFILL, tokens[start : start + self.chunk])
        self._release(PREFILL)  # what it maps of the weights would count twice beside `decode`
        return logits

    def clear(self) -> None:
        """Forget all tokens; what the cache still holds of them is not seen."""
        self.position = 0

    def keep(self, tokens: int) -> None:
        """Forget all tokens but the first."""
        self.position = min(tokens, self.position)

    def release(self) -> None:
        """Give the programs' memory back."""
        self._release(PREFILL)
        self._release(DECODE)

    def _release(self, kind: ProgramKind) -> None:
        for step in self._steps[kind]:
            self._runtime.release(step.program)

    def _run(self, kind: ProgramKind, tokens: Sequence[int]) -> Floats:
        told, count = self._tokens[kind], len(tokens)
        told.ids[:] = tokens[-1]  # padding
        told.ids[0, :count] = tokens
        told.last[0] = count - 1
        places = np.arange(self.position, self.position + told.ids.shape[1], dtype=np.int64)
        told.positions[0] = np.minimum(places, self.length - 1)  # of padding: any that exists
        values: dict[str, Array] = {**told.named(), **self._cache}
        for step in self._steps[kind]:
            inputs = step.fixed | {name: values[name] for name in step.given}
            results = self._runtime.run(step.program, inputs)
            self._write(results, count)
            values["hidden"] = results.get("hidden", told.ids)
            if "logits" in results:
                values["logits"] = results["logits"]
        self.position += count
        return np.asarray(values["logits"], np.float32).reshape(-1)

    def _write(self, results: Mapping[str, Array], count: int) -> None:
        place = slice(self.position, self.position + count)
        for name, value in results.items():
            if value is self._cache.get(name):
                continue  # the program has written it
            if name.startswith(_KEY):
                self._cache[name][:, :, place] = value[:, :, :count]
            elif name.startswith(_VALUE):
                self._cache[name][:, place] = value[:, :count]


def _step(program: ProgramSpec, weights: Arrays) -> _Step:
    trained = [spec.name for spec in program.inputs if spec.name.startswith(WEIGHT)]
    missing = [name.removeprefix(WEIGHT) for name in trained if name.removeprefix(WEIGHT) not in weights]
    if missing:
        raise ProgramInputError(f"the weights given lack {missing[0]}, an input of {program.name}")
    fixed = {name: weights[name.removeprefix(WEIGHT)] for name in trained}
    return _Step(program, fixed, tuple(spec.name for spec in program.inputs if spec.name not in fixed))

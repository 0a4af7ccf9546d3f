"""Verify a bundle for its manifest: that its results are right, and the memory that they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edge_client.bundle import manifest as m
from edge_client.commands.progress import Progress
from edge_client.memory import trim_memory
from export.chain import Parts
from export.check import digits, verify
from export.check.excerpt import excerpt, few_segments, only, stand_alone, structure
from export.check.generation import verify_generation
from export.check.memory import memory_of
from export.check.quantized import dequantized_weights, relative_change
from export.check.reference import Reference
from export.check.verify import Extent
from export.model.mapped import Scratch
from export.write.description import structure_of

_ROUNDED = "weights of the file, relative change by rounding"


@dataclass(frozen=True)
class _Scope:
    """A part of the chain, and how much of it is held against the model."""

    segments: Sequence[m.Segment]
    extent: Extent
    blocks: int = 0
    """The number of blocks that are left of the model; 0 for all."""


class Verification:
    """Holds what an export writes against its model; the model's results are kept for another attempt."""

    def __init__(self, parts: Parts, scratch: Scratch | None) -> None:
        self._parts = parts
        self._scratch = scratch
        self._scopes = _scopes(parts)
        self._plain = Reference(parts.adapted, parts.loaded.task)
        self._references: dict[str, Reference] = {}
        self._truths: dict[tuple[int, Reference], verify.Truth] = {}
        self._rounded: dict[str, float] = {}
        """The relative change of a GGUF file's weights, by runtime."""
        self.in_two: Collection[tuple[str, str]] = ()
        """Runtimes and segments whose products are in two digits, to be reported."""

    def verified(self, folder: Path, manifest: m.Manifest, progress: Progress) -> m.Manifest:
        """Verify every runtime; return the manifest with the checks, or raise `VerificationFailed`."""
        options = self._parts.options
        checks: list[m.Check] = []
        directions = 1 if self._scopes[0].extent.adaptive else options.most_directions
        steps = sum(1 + 2 * scope.extent.exact + directions for scope in self._scopes) + bool(options.generate)
        with progress.stage("verify", steps * len(options.runtimes)):
            for number, scope in enumerate(self._scopes):
                found: list[m.Check] = []
                with self._alone(scope):
                    for runtime in options.runtimes:
                        found += self._checks(folder, manifest, runtime, number, progress)
                verify.refuse_failures(found)
                checks += found
                trim_memory()
            if options.generate:
                checks += self._of_generation(folder, manifest, progress)
        checks += [
            m.Check(runtime, options.precision, _ROUNDED, change, None, passed=True)
            for runtime, change in self._rounded.items()
        ]
        checks += [
            m.Check(
                runtime, options.precision, f"segments in two digits, of {len(manifest.segments)}", count, None, True
            )
            for runtime, count in Counter(runtime for runtime, _ in self.in_two).items()
        ]
        verify.refuse_failures(checks)
        tried = {name: verify.with_trials(folder, name, spec) for name, spec in manifest.runtimes.items()}
        return msgspec.structs.replace(manifest, runtimes=tried, verification=tuple(checks))

    def needed_in_two(self, one: Path, two: Path, manifest: m.Manifest, progress: Progress) -> set[tuple[str, str]]:
        """Return the segments, by runtime, that need int8 products in two digits, of bundles in one digit and in two.

        All of them where the whole chain is not verified, or nothing in it moves.
        """
        names = [segment.name for segment in manifest.segments]
        runtimes = self._parts.options.runtimes
        if self._scopes[0].blocks or not manifest.units:
            return {(runtime, name) for runtime in runtimes for name in names}
        needed: set[tuple[str, str]] = set()
        with progress.stage("choose digits", digits.GROUPS * len(runtimes)):
            for runtime in runtimes:
                truth = self._truth(0, manifest, self._reference(runtime, manifest))
                found = digits.needed_in_two(one, two, manifest, runtime, truth, progress.advance)
                needed |= {(runtime, name) for name in found}
        return needed

    def _alone(self, scope: _Scope) -> AbstractContextManager[None]:
        """Return the model without the other blocks, where a scope leaves some out."""
        return only(self._parts.loaded.blocks, scope.segments) if scope.blocks else nullcontext()

    def _checks(
        self, folder: Path, manifest: m.Manifest, runtime: str, number: int, progress: Progress
    ) -> list[m.Check]:
        scope = self._scopes[number]
        short = excerpt(manifest, scope.segments) if scope.blocks else manifest
        plain, model = self._plain, self._reference(runtime, manifest)
        truth, unquantized = self._truth(number, short, model), self._truth(number, short, plain)
        where = f", of {scope.blocks} blocks" if scope.blocks else ""
        checks = verify.verify(
            folder, short, runtime, truth, unquantized, low_memory=self._parts.in_files, extent=scope.extent,
            advance=lambda what: progress.advance(f"{runtime}: {what}{where}"),
        )  # fmt: skip
        return [msgspec.structs.replace(check, what=f"{check.what}{where}") for check in checks]

    def _truth(self, number: int, manifest: m.Manifest, model: Reference) -> verify.Truth:
        if (number, model) not in self._truths:
            self._truths[number, model] = verify.Truth(model, self._sample(manifest))
        return self._truths[number, model]

    def _sample(self, manifest: m.Manifest) -> verify.Sample:
        options = self._parts.options
        return verify.make_sample(
            self._parts.loaded, self._parts.adapted, manifest, options.most_directions, options.seed
        )

    def _reference(self, runtime: str, manifest: m.Manifest) -> Reference:
        """Return the model as a runtime's quantization sees it."""
        if runtime not in self._references:
            options, chain, adapted = self._parts.options, self._parts.chain, self._parts.adapted
            names = {segment.name for scope in self._scopes for segment in scope.segments}
            programs = {name: shaped for name, shaped in chain.programs.items() if name in names}
            processor = manifest.runtimes[runtime].processor
            replaced = dequantized_weights(
                programs, chain.stored, adapted.model, runtime, options.precision, processor, self._scratch
            )
            if replaced and self._parts.loaded.kept is not None:
                self._rounded[runtime] = relative_change(replaced, adapted.model)
            self._references[runtime] = (
                Reference(adapted, self._parts.loaded.task, replaced) if replaced else self._plain
            )
        return self._references[runtime]

    def _of_generation(self, folder: Path, manifest: m.Manifest, progress: Progress) -> list[m.Check]:
        sample = self._sample(manifest)
        checks: list[m.Check] = []
        for runtime in self._parts.options.runtimes:
            model, ids = self._reference(runtime, manifest), sample.inputs["input_ids"][0]
            checks += verify_generation(folder, manifest, runtime, model, ids, sample.values)
            progress.advance(f"{runtime}: generation")
        return checks


def _scopes(parts: Parts) -> list[_Scope]:
    """List what is verified: all in all, or blocks of each structure as a model of their own, and the whole in little.

    Blocks of one structure share their programs, so that a few of them prove the way back and the model's own
    derivatives; that all of them are in their places is proved by the whole chain's loss and its derivatives along a
    few directions.
    """
    options, chain, blocks = parts.options, parts.chain, parts.loaded.blocks
    whole = structure_of(chain.segments).segments
    adaptive = options.verify == "auto"
    few = few_segments(whole, [structure(segment) for segment in chain.segments[1:-1]]) if blocks else whole
    own = sum(segment.last_block - segment.first_block for segment in few)
    if options.low_memory and blocks:
        return [_Scope(few, Extent(adaptive=adaptive), own)]
    if not adaptive or len(few) == len(whole) or not stand_alone(chain.segments, chain.stored, blocks):
        return [_Scope(whole, Extent(adaptive=adaptive))]
    return [
        _Scope(whole, Extent(exact=False, adaptive=True)),  # first: it fails where int8 is too coarse for so many
        _Scope(few, Extent(beside_float=False, adaptive=True), own),
    ]


def measured(folder: Path, manifest: m.Manifest, cache: Path, progress: Progress) -> m.Manifest:
    """Measure the memory of every program and return the manifest with it."""
    runtimes: dict[str, m.RuntimeSpec] = {}
    with progress.stage("measure", len(manifest.runtimes)):
        for name, runtime in manifest.runtimes.items():
            memory = memory_of(folder, manifest, name, cache)
            programs = tuple(
                msgspec.structs.replace(program, **memory[program.name]._asdict()) for program in runtime.programs
            )
            runtimes[name] = msgspec.structs.replace(runtime, programs=programs)
            progress.advance(name)
    return msgspec.structs.replace(manifest, runtimes=runtimes)

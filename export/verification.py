"""What a manifest tells of a bundle that runs: that its results are right, and the memory that they take."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_client.bundle import manifest as m
from export.chain import Parts
from export.check import verify
from export.check.excerpt import excerpt, few_segments, only
from export.check.generation import verify_generation
from export.check.memory import memory_of
from export.check.quantized import dequantized_weights, relative_change
from export.check.reference import Reference
from export.model.mapped import Scratch
from export.progress import Progress
from export.write import pack

_ROUNDED = "weights of the file, relative change by rounding"


def verified(folder: Path, manifest: m.Manifest, parts: Parts, progress: Progress) -> m.Manifest:
    """The manifest with every runtime's checks, or `VerificationFailed`."""
    options, loaded = parts.options, parts.loaded
    few = few_segments(manifest.segments) if options.low_memory and loaded.blocks else None
    if few is None:
        checks = _checks(folder, manifest, parts, progress)
    else:
        with pack.scratch(options.out) as scratch, only(loaded.blocks, few):
            short = excerpt(manifest, few)
            checks = _checks(folder, short, parts, progress, Scratch(scratch))
            blocks = sum(segment.last_block - segment.first_block for segment in few)
            checks = [msgspec.structs.replace(check, what=f"{check.what}, of {blocks} blocks") for check in checks]
    verify.refuse_failures(checks)
    tried = {name: verify.with_trials(folder, name, spec) for name, spec in manifest.runtimes.items()}
    return msgspec.structs.replace(manifest, runtimes=tried, verification=tuple(checks))


def _checks(
    folder: Path, manifest: m.Manifest, parts: Parts, progress: Progress, scratch: Scratch | None = None
) -> list[m.Check]:
    """Every runtime against the eager model; with a place for quantized weights, one program at a time."""
    options, loaded, adapted, chain = parts.options, parts.loaded, parts.adapted, parts.chain
    sample = verify.make_sample(loaded, adapted, manifest, options.verify_directions, options.seed)
    plain = Reference(adapted, loaded.task)
    unquantized = verify.Truth(plain, sample)
    programs = {segment.name: chain.programs[segment.name] for segment in manifest.segments}
    checks: list[m.Check] = []
    with progress.stage("verify", len(options.runtimes)):
        for runtime in options.runtimes:
            processor = manifest.runtimes[runtime].processor
            replaced = dequantized_weights(
                programs, chain.stored, adapted.model, runtime, options.precision, processor, scratch
            )
            model = Reference(adapted, loaded.task, replaced) if replaced else plain
            truth = verify.Truth(model, sample) if replaced else unquantized
            checks += verify.verify(folder, manifest, runtime, truth, unquantized, low_memory=scratch is not None)
            if replaced and loaded.kept is not None:
                change = relative_change(replaced, adapted.model)
                checks.append(m.Check(runtime, options.precision, _ROUNDED, change, None, passed=True))
            if options.generate:
                ids = sample.inputs["input_ids"][0]
                checks += verify_generation(folder, manifest, runtime, model, ids, sample.values)
            progress.advance(runtime)
    return checks


def measured(folder: Path, manifest: m.Manifest, cache: Path, progress: Progress) -> m.Manifest:
    """The manifest with the memory that every program takes."""
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

"""An export from top to bottom: load, adapt, capture, differentiate, lower, verify, measure, pack."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from edge_client.bundle import manifest as m
from edge_client.bundle import signature
from edge_client.commands.progress import Progress, Silent
from edge_client.keys import read_secret
from export.adapt.pooling import STEPS
from export.adapt.wrapping import adapt
from export.assembly import assemble
from export.chain import Parts, differentiate
from export.check.quantized import tied_weights
from export.errors import ExportError, VerificationFailed
from export.graph.slots import slot_of
from export.lower.lowering import Results, SegmentLowering, lower_all, partial, prune
from export.lower.target import Shaped, processor_for
from export.model import mapped
from export.model.fitting import require_memory_for_all, require_memory_for_each
from export.model.kept import keep
from export.model.loading import Loaded, copied_bytes, is_too_large, load
from export.model.mapped import LARGE, Scratch
from export.options import ExportOptions
from export.tasks.registry import MODEL_TASKS
from export.verification import Verification, measured
from export.write import pack

CACHE_LIMIT = 20_000_000_000


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> m.Manifest:
    """Write the bundle that `options` ask for and return its manifest."""
    progress = progress or Silent()
    options.check()
    with progress.stage("load"):
        options = _with_low_memory(options)
        loaded, in_files = _loaded(options)
        _refuse_long_sequences(loaded, options)
        pack.require_space(options.out, _expected_bytes(loaded, options))
    with progress.stage("adapt", STEPS if options.adapter.from_mean else 0):
        adapted = adapt(loaded, options.adapter, options.seed, tell=progress.advance)
    with progress.stage("capture and differentiate", len(options.shapes)):
        chain = differentiate(loaded, adapted, options, progress)
        keep(chain.stored.values(), loaded.kept or {})
    with tempfile.TemporaryDirectory() if options.cache is None else nullcontext(str(options.cache)) as cache:
        Path(cache).mkdir(parents=True, exist_ok=True)
        parts = Parts(options, loaded, adapted, chain, _processors(options), in_files=in_files)
        manifest = _finest_needed(parts, Path(cache), progress)
        if options.cache is not None:
            prune(options.cache, CACHE_LIMIT)
    return manifest


def _finest_needed(parts: Parts, cache: Path, progress: Progress) -> m.Manifest:
    """Write the whole bundle, with int8 products in two digits where the model needs them, everywhere if need be."""
    with pack.scratch(parts.options.out) if parts.in_files else nullcontext() as scratch:
        verification = Verification(parts, scratch and Scratch(scratch))
        one = _lowered(parts, cache, progress)
        try:
            return _written(parts, cache, progress, verification, one)
        except VerificationFailed as error:
            if not all(parts.processors[runtime] for runtime in error.runtimes):
                raise
        two = _lowered(parts, cache, progress, fine=True)
        verification.in_two = needed = _needed_in_two(parts, cache, progress, verification, one, two)
        if needed < two.keys():
            with suppress(VerificationFailed):
                return _written(parts, cache, progress, verification, one | {key: two[key] for key in needed})
        verification.in_two = two.keys()
        return _written(parts, cache, progress, verification, two)


def _lowered(parts: Parts, cache: Path, progress: Progress, *, fine: bool = False) -> Results:
    """Lower all segments, by runtime; `fine`: the form of int8 products that is as exact as it can be."""
    options = parts.options
    jobs = _jobs(parts, fine=fine)
    with progress.stage("lower, in two digits" if fine else "lower", len(jobs)):
        workers = options.workers or int(bool(options.low_memory))
        results = lower_all(jobs, cache, workers, _telling(progress))
        _refuse_fallbacks(results, options)
    return results


def _needed_in_two(
    parts: Parts, cache: Path, progress: Progress, verification: Verification, one: Results, two: Results
) -> set[tuple[str, str]]:
    """Return the segments whose products need two digits, by runtime."""
    with partial(cache) as folder:
        manifest = assemble(folder / "one", parts, one)
        assemble(folder / "two", parts, two)
        return verification.needed_in_two(folder / "one", folder / "two", manifest, progress)


def _written(parts: Parts, cache: Path, progress: Progress, verification: Verification, results: Results) -> m.Manifest:
    """Write the whole bundle in its place, or nothing."""
    options = parts.options
    with pack.staging(options.out) as folder:
        manifest = assemble(folder, parts, results)
        if options.most_directions:
            manifest = verification.verified(folder, manifest, progress)
        if options.measure:
            manifest = measured(folder, manifest, cache, progress)
        pack.write_manifest(folder, manifest)
        if options.sign is not None:
            signature.sign(folder, read_secret(options.sign))
    return manifest


def _with_low_memory(options: ExportOptions) -> ExportOptions:
    """Decide the options that were left to this machine's memory."""
    if options.low_memory is None:
        options = replace(options, low_memory=not options.random_weights and is_too_large(options.source))
    if options.low_memory and options.generate:
        raise ExportError(
            "programs that generate text are compared with the whole model, which has to be in memory: leave out "
            "--generate, or give --no-low-memory"
        )
    return options


def _loaded(options: ExportOptions) -> tuple[Loaded, bool]:
    """Load the model; return whether its weights stay in files, from which they are read while they are needed."""
    task, random_weights = MODEL_TASKS[options.task], options.random_weights
    given = options.source, task, options.labels
    if options.low_memory:
        require_memory_for_each(options.source)
        pack.require_space(options.out, copied_bytes(options.source), "a copy of the weights in float32")
    else:
        require_memory_for_all(options.source, task, random_weights=random_weights)
    if options.low_memory or (not random_weights and _belong_in_files(copied_bytes(options.source), options.out)):
        with pack.scratch(options.out) as copy:
            loaded = load(*given, seed=options.seed, copy=copy)
    else:
        loaded = load(*given, random_weights=random_weights, seed=options.seed)
        if not _belong_in_files(4 * loaded.parameters, options.out):
            return loaded, False
        with pack.scratch(options.out) as scratch:
            mapped.move_to_files(loaded.model, Scratch(scratch))
    mapped.let_go_behind(loaded.pieces)
    return loaded, True


def _belong_in_files(size: int, out: Path) -> bool:
    return size >= LARGE and pack.has_space(out, 2 * size)  # once as they are and once as they are quantized


def _refuse_long_sequences(loaded: Loaded, options: ExportOptions) -> None:
    for option, longest in (("--seq", max(options.lengths)), ("--generate", options.generate)):
        if loaded.positions is not None and longest > loaded.positions:
            raise ExportError(
                f"the model has {loaded.positions} positions, got {option} {longest}; choose a shorter length"
            )


# --- lowering --------------------------------------------------------------------------------------------------------


def _processors(options: ExportOptions) -> dict[str, str]:
    """Return the processor that each runtime's files are made for."""
    return {name: processor_for(name, options.processor, options.precision) for name in options.runtimes}


def _jobs(parts: Parts, *, fine: bool = False) -> list[SegmentLowering]:
    options, chain = parts.options, parts.chain
    tied = tied_weights(chain.programs)
    return [
        SegmentLowering(
            runtime,
            options.precision,
            segment.name,
            shaped,
            _needed(chain.stored, shaped),
            tied,
            processor=parts.processors[runtime],
            fine=fine,
            in_files=parts.in_files,
        )
        for runtime in options.runtimes
        for segment in chain.segments
        for shaped in [chain.all_of(segment.name, runtime)]
    ]


def _needed(stored: Mapping[str, Tensor], programs: Sequence[Shaped]) -> dict[str, Tensor]:
    names = {slot_of(node).name for shaped in programs for node in shaped.program.stored}
    return {name: stored[name] for name in sorted(names)}


def _telling(progress: Progress) -> Callable[[SegmentLowering, bool], None]:
    def tell(job: SegmentLowering, cached: bool) -> None:
        progress.advance(f"{job.runtime} {job.segment}{' (cached)' if cached else ''}")

    return tell


def _refuse_fallbacks(results: Results, options: ExportOptions) -> None:
    fallbacks = [f"{runtime}: {line}" for (runtime, _), result in results.items() for line in result.fallbacks]
    if fallbacks and not options.allow_fallback:
        raise ExportError(
            f"{len(fallbacks)} large ops would run on a slow fallback kernel: {'; '.join(fallbacks[:5])}; "
            "pass --allow-fallback to accept that"
        )


def _expected_bytes(loaded: Loaded, options: ExportOptions) -> int:
    per_weight = {"none": 4.0, "int8": 1.1, "int4": 0.75}[options.precision]
    return int(loaded.parameters * per_weight * len(options.runtimes)) + 50_000_000

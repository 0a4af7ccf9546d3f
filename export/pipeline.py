"""An export from top to bottom: load, adapt, capture, differentiate, lower, verify, measure, pack."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec
from torch import Tensor

from edge_client.bundle import manifest as m
from edge_client.bundle import signature
from edge_client.keys import read_secret
from export.adapt.wrapping import Adapted, adapt
from export.check import verify
from export.check.excerpt import excerpt, few_segments, only
from export.check.generation import verify_generation
from export.check.memory import memory_of
from export.check.quantized import dequantized_weights, tied_weights
from export.check.reference import Reference
from export.dual.generation import CHUNK, generation_programs
from export.dual.programs import Program, ProgramBuilder, input_name, kinds
from export.errors import ExportError, VerificationFailed
from export.graph.bottlenecks import mark_bottlenecks
from export.graph.capture import Captured, capture
from export.graph.flops import count_flops
from export.graph.narrow import narrow
from export.graph.segments import SegmentGraph, boundaries, split
from export.graph.slots import Role, slot_of, value_of
from export.lower.lowering import LoweredSegment, SegmentLowering, lower_all, prune
from export.lower.target import Precision, Shaped, lowering, processor_for
from export.model.loading import Loaded, copied_bytes, is_too_large, load
from export.model.mapped import Scratch
from export.options import ExportOptions
from export.tasks.registry import MODEL_TASKS
from export.write import pack
from export.write.description import describe

CACHE_LIMIT = 20_000_000_000


class Progress(Protocol):
    """What is told of an export while it runs."""

    def stage(self, name: str, steps: int = 0) -> AbstractContextManager[None]:
        """A part of the work begins, and ends with the block; `steps` are told by `advance`."""
        ...

    def advance(self, what: str) -> None:
        """One step of the stage is done."""
        ...


class Silent:
    """For callers that want no progress."""

    def stage(self, name: str, steps: int = 0) -> AbstractContextManager[None]:
        """Tells nobody."""
        return nullcontext()

    def advance(self, what: str) -> None:
        pass


@dataclass
class DifferentiatedModel:
    """A model's chain of segments and the programs of every shape, before any runtime is chosen."""

    segments: list[SegmentGraph]
    programs: dict[str, list[Shaped]]
    """By segment."""
    generation: dict[str, list[Shaped]]
    """Those that generate text, by segment."""
    stored: dict[str, Tensor]

    def all_of(self, segment: str) -> list[Shaped]:
        return self.programs[segment] + self.generation.get(segment, [])


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> m.Manifest:
    """Write the bundle that `options` ask for and return its manifest."""
    progress = progress or Silent()
    options.check()
    with progress.stage("load"):
        options = _with_low_memory(options)
        loaded = _loaded(options)
        _refuse_long_sequences(loaded, options)
        pack.require_space(options.out, _expected_bytes(loaded, options))
    with progress.stage("adapt"):
        adapted = adapt(loaded, options.adapter, options.seed)
    with progress.stage("capture and differentiate", len(options.shapes)):
        chain = _differentiate(loaded, adapted, options, progress)
    with tempfile.TemporaryDirectory() if options.cache is None else nullcontext(str(options.cache)) as cache:
        Path(cache).mkdir(parents=True, exist_ok=True)
        processors = _processors(chain, options)
        parts = loaded, adapted, chain, processors
        try:
            manifest = _written(*parts, options, Path(cache), progress)
        except VerificationFailed as error:
            if not all(processors[runtime] for runtime in error.runtimes):
                raise
            manifest = _written(*parts, options, Path(cache), progress, fine=True)
        if options.cache is not None:
            prune(options.cache, CACHE_LIMIT)
    if options.archive:
        with progress.stage("archive"):
            pack.write_archive(options.out, options.archive_path)
    return manifest


def _written(
    loaded: Loaded,
    adapted: Adapted,
    chain: DifferentiatedModel,
    processors: Mapping[str, str],
    options: ExportOptions,
    cache: Path,
    progress: Progress,
    *,
    fine: bool = False,
) -> m.Manifest:
    """The whole bundle in its place, or nothing; `fine`: the form of int8 products that is as exact as it can be."""
    jobs = _jobs(chain, processors, options, fine=fine)
    with progress.stage("lower, in two digits" if fine else "lower", len(jobs)):
        results = lower_all(jobs, cache, options.workers, _telling(progress))
        _refuse_fallbacks(results, options)
    with pack.staging(options.out) as folder:
        manifest = _assemble(folder, loaded, adapted, chain, results, processors, options)
        if options.verify_directions:
            manifest = _verified(folder, manifest, loaded, adapted, chain, options, progress)
        if options.measure:
            manifest = _measured(folder, manifest, cache, progress)
        pack.write_manifest(folder, manifest)
        if options.sign is not None:
            signature.sign(folder, read_secret(options.sign))
    return manifest


def _with_low_memory(options: ExportOptions) -> ExportOptions:
    """The options with what was left to this machine's memory decided."""
    if options.low_memory is None:
        options = replace(options, low_memory=not options.random_weights and is_too_large(options.source))
    if options.low_memory and options.generate:
        raise ExportError(
            "what generates is checked against the whole model, which has to be in memory: leave out --generate, or "
            "give --no-low-memory"
        )
    return options


def _loaded(options: ExportOptions) -> Loaded:
    task, random_weights = MODEL_TASKS[options.task], options.random_weights
    given = options.source, task, options.labels
    if not options.low_memory:
        return load(*given, random_weights=random_weights, seed=options.seed)
    pack.require_space(options.out, copied_bytes(options.source), "a copy of the weights in float32")
    with pack.scratch(options.out) as copy:
        return load(*given, seed=options.seed, copy=copy)


def _refuse_long_sequences(loaded: Loaded, options: ExportOptions) -> None:
    for option, longest in (("--seq", max(options.lengths)), ("--generate", options.generate)):
        if loaded.positions is not None and longest > loaded.positions:
            raise ExportError(
                f"the model has {loaded.positions} positions, got {option} {longest}; choose a shorter length"
            )


# --- from a model to programs ----------------------------------------------------------------------------------------


def _differentiate(loaded: Loaded, adapted: Adapted, options: ExportOptions, progress: Progress) -> DifferentiatedModel:
    programs: dict[str, list[Shaped]] = {}
    stored: dict[str, Tensor] = {}
    segments: list[SegmentGraph] = []
    for batch, length in options.shapes:
        captured = capture(adapted.model, loaded.task, loaded.example_inputs(batch, length), adapted.slots)
        narrow(captured)
        if adapted.at_bottlenecks:
            mark_bottlenecks(captured.graph)
        segments = split(captured, loaded.layers, boundaries(loaded.layers, options.cuts))
        for program in _programs(segments, options.directions):
            programs.setdefault(program.segment, []).append(Shaped(program, batch, length))
        _merge(stored, captured)
        progress.advance(f"{batch}x{length}")
    generation: dict[str, list[Shaped]] = {}
    if options.generate:
        starts = boundaries(loaded.layers, options.cuts)
        found = generation_programs(adapted.model, loaded.layers, starts, options.generate, adapted.slots)
        for program, tokens in found.programs:
            generation.setdefault(program.segment, []).append(Shaped(program, 1, tokens))
        for name, tensor in found.stored.items():
            stored.setdefault(name, tensor)
    return DifferentiatedModel(segments, programs, generation, stored)


def _programs(segments: Sequence[SegmentGraph], directions: Sequence[int]) -> list[Program]:
    builder = ProgramBuilder()
    programs: list[Program] = []
    trained_before = False
    for segment in segments:
        for kind in kinds(segment, trained_before=trained_before):
            first, *more = (builder.build(segment, kind, count) for count in directions)
            programs += [first, *more] if first.directions else [first]
        trained_before = trained_before or bool(segment.slots(Role.ADAPTER))
    return programs


def _merge(stored: dict[str, Tensor], captured: Captured) -> None:
    for name, tensor in captured.stored.items():
        stored.setdefault(name, tensor)


# --- lowering --------------------------------------------------------------------------------------------------------


def _processors(chain: DifferentiatedModel, options: ExportOptions) -> dict[str, str]:
    """By runtime, what its files are made for."""
    programs = [shaped for group in chain.programs.values() for shaped in group]
    return {name: processor_for(name, options.processor, options.precision, programs) for name in options.runtimes}


def _jobs(
    chain: DifferentiatedModel, processors: Mapping[str, str], options: ExportOptions, *, fine: bool = False
) -> list[SegmentLowering]:
    tied = tied_weights(chain.programs)
    return [
        SegmentLowering(
            runtime,
            options.precision,
            segment.name,
            shaped,
            _needed(chain.stored, shaped),
            tied,
            processor=processors[runtime],
            fine=fine,
            low_memory=bool(options.low_memory),
        )
        for runtime in options.runtimes
        for segment in chain.segments
        for shaped in [chain.all_of(segment.name)]
    ]


def _needed(stored: Mapping[str, Tensor], programs: Sequence[Shaped]) -> dict[str, Tensor]:
    names = {slot_of(node).name for shaped in programs for node in shaped.program.stored}
    return {name: stored[name] for name in sorted(names)}


def _telling(progress: Progress):  # noqa: ANN202 -- the type of lower_all's callback
    def tell(job: SegmentLowering, cached: bool) -> None:
        progress.advance(f"{job.runtime} {job.segment}{' (cached)' if cached else ''}")

    return tell


def _refuse_fallbacks(results: Mapping[tuple[str, str], LoweredSegment], options: ExportOptions) -> None:
    fallbacks = [f"{runtime}: {line}" for (runtime, _), result in results.items() for line in result.fallbacks]
    if fallbacks and not options.allow_fallback:
        raise ExportError(
            f"{len(fallbacks)} large ops would run on a slow fallback kernel: {'; '.join(fallbacks[:5])}; "
            "pass --allow-fallback to accept that"
        )


def _expected_bytes(loaded: Loaded, options: ExportOptions) -> int:
    per_weight = {"none": 4.0, "int8": 1.1, "int4": 0.75}[options.precision]
    return int(loaded.parameters * per_weight * len(options.runtimes)) + 50_000_000


# --- the manifest ----------------------------------------------------------------------------------------------------


def _assemble(
    folder: Path,
    loaded: Loaded,
    adapted: Adapted,
    chain: DifferentiatedModel,
    results: Mapping[tuple[str, str], LoweredSegment],
    processors: Mapping[str, str],
    options: ExportOptions,
) -> m.Manifest:
    """Put every file in its place and describe it, verification and memory still missing."""
    for result in results.values():
        for file in result.files:
            pack.link_file(Path(result.folder) / file.path, folder / file.path)
    pack.add_adapter(folder / pack.ADAPTER_FOLDER, adapted.config, adapted.initial)
    pack.add_config(folder, loaded)
    tokenizer, template = pack.add_tokenizer(folder, loaded), pack.add_template(folder, loaded)
    manifest = msgspec.structs.replace(
        describe(loaded, adapted, chain.segments, options.adapter.method),
        shapes=options.shapes,
        directions=options.directions,
        tokenizer=tokenizer,
        chat_template=template,
        generation=_generation(loaded, options),
        runtimes={
            runtime: msgspec.structs.replace(
                _runtime(runtime, chain, results, options.precision), processor=processors[runtime]
            )
            for runtime in options.runtimes
        },
        files=pack.list_files(folder),
    )
    pack.write_manifest(folder, manifest)
    return manifest


def _generation(loaded: Loaded, options: ExportOptions) -> m.GenerationSpec | None:
    if not options.generate:
        return None
    return m.GenerationSpec(options.generate, min(CHUNK, options.generate), loaded.ends)


def _runtime(
    runtime: str, chain: DifferentiatedModel, results: Mapping[tuple[str, str], LoweredSegment], precision: Precision
) -> m.RuntimeSpec:
    programs: list[m.ProgramSpec] = []
    generation: list[m.ProgramSpec] = []
    shared: dict[str, None] = {}
    sizes: dict[str, int] = {}
    for segment in chain.segments:
        result = results[runtime, segment.name]
        programs += [_program(shaped, result) for shaped in chain.programs[segment.name]]
        generation += [_program(shaped, result) for shaped in chain.generation.get(segment.name, [])]
        named = {entry.file for entry in result.entries.values()}
        shared |= dict.fromkeys(file.path for file in result.files if file.path not in named)
        sizes |= {file.path: file.bytes for file in result.files}
    versions = {library: f"{version}" for library, version in lowering(runtime).versions().items()}
    return m.RuntimeSpec(
        precision, versions, tuple(programs), sum(sizes.values()), tuple(shared), generation=tuple(generation)
    )


def _program(shaped: Shaped, result: LoweredSegment) -> m.ProgramSpec:
    program, entry = shaped.program, result.entries[shaped.name]
    return m.ProgramSpec(
        segment=program.segment,
        kind=program.kind,  # type: ignore[arg-type]
        batch=shaped.batch,
        length=shaped.length,
        directions=program.directions,
        file=entry.file,
        method=entry.method,
        inputs=tuple(_tensor(input_name(slot_of(node)), value_of(node)) for node in program.inputs),
        outputs=tuple(_tensor(name, value_of(n)) for name, n in zip(program.outputs, program.results, strict=True)),
        flops=count_flops(program.graph),
        load_bytes=0,
        peak_bytes=0,
    )


def _tensor(name: str, value: Tensor) -> m.TensorSpec:
    return m.TensorSpec(name, str(value.dtype).removeprefix("torch."), tuple(value.shape))


# --- what is added once the bundle runs ------------------------------------------------------------------------------


def _verified(
    folder: Path,
    manifest: m.Manifest,
    loaded: Loaded,
    adapted: Adapted,
    chain: DifferentiatedModel,
    options: ExportOptions,
    progress: Progress,
) -> m.Manifest:
    few = few_segments(manifest.segments) if options.low_memory and loaded.blocks else None
    if few is None:
        checks = _checks(folder, manifest, loaded, adapted, chain, options, progress)
    else:
        with pack.scratch(options.out) as scratch, only(loaded.blocks, few):
            short = excerpt(manifest, few)
            checks = _checks(folder, short, loaded, adapted, chain, options, progress, Scratch(scratch))
            blocks = sum(segment.last_block - segment.first_block for segment in few)
            checks = [msgspec.structs.replace(check, what=f"{check.what}, of {blocks} blocks") for check in checks]
    verify.refuse_failures(checks)
    tried = {name: verify.with_trials(folder, name, spec) for name, spec in manifest.runtimes.items()}
    return msgspec.structs.replace(manifest, runtimes=tried, verification=tuple(checks))


def _checks(
    folder: Path,
    manifest: m.Manifest,
    loaded: Loaded,
    adapted: Adapted,
    chain: DifferentiatedModel,
    options: ExportOptions,
    progress: Progress,
    scratch: Scratch | None = None,
) -> list[m.Check]:
    """Every runtime against the eager model; with a place for quantized weights, one program at a time."""
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
            if options.generate:
                ids = sample.inputs["input_ids"][0]
                checks += verify_generation(folder, manifest, runtime, model, ids, sample.values)
            progress.advance(runtime)
    return checks


def _measured(folder: Path, manifest: m.Manifest, cache: Path, progress: Progress) -> m.Manifest:
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

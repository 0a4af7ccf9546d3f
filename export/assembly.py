"""A bundle's folder from its lowered files, and the manifest that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from torch import Tensor

from edge_client.bundle import manifest as m
from export.chain import DifferentiatedModel, Parts
from export.dual.generation import CHUNK
from export.dual.programs import input_name
from export.graph.flops import count_flops
from export.graph.slots import slot_of, value_of
from export.lower.lowering import LoweredSegment
from export.lower.target import Linking, Precision, Shaped, linked_tensors, lowering
from export.model.loading import Loaded
from export.options import ExportOptions
from export.write import pack
from export.write.description import describe, structure_of


def assemble(folder: Path, parts: Parts, results: Mapping[tuple[str, str], LoweredSegment]) -> m.Manifest:
    """Put every file in its place and describe it, verification and memory still missing."""
    options, loaded, adapted, chain = parts.options, parts.loaded, parts.adapted, parts.chain
    for result in results.values():
        for file in result.files:
            pack.link_file(Path(result.folder) / file.path, folder / file.path)
    runtimes = {
        runtime: msgspec.structs.replace(
            _runtime(folder, runtime, chain, results, options.precision), processor=parts.processors[runtime]
        )
        for runtime in options.runtimes
    }
    pack.add_adapter(folder / pack.ADAPTER_FOLDER, adapted.config, adapted.initial)
    pack.add_config(folder, loaded)
    tokenizer, template = pack.add_tokenizer(folder, loaded), pack.add_template(folder, loaded)
    manifest = msgspec.structs.replace(
        describe(loaded, adapted, structure_of(chain.segments), options.adapter.method),
        shapes=options.shapes,
        directions=options.directions,
        tokenizer=tokenizer,
        chat_template=template,
        turns=pack.turns_in(loaded),
        generation=_generation(loaded, options),
        runtimes=runtimes,
        files=pack.list_files(folder),
    )
    pack.write_manifest(folder, manifest)
    return manifest


def _generation(loaded: Loaded, options: ExportOptions) -> m.GenerationSpec | None:
    if not options.generate:
        return None
    return m.GenerationSpec(options.generate, min(CHUNK, options.generate), loaded.ends)


def _runtime(
    folder: Path,
    runtime: str,
    chain: DifferentiatedModel,
    results: Mapping[tuple[str, str], LoweredSegment],
    precision: Precision,
) -> m.RuntimeSpec:
    programs: list[m.ProgramSpec] = []
    generation: list[m.ProgramSpec] = []
    shared: dict[str, None] = {}
    sizes: dict[str, int] = {}
    for segment in chain.segments:
        result = results[runtime, segment.name]
        programs += [_program(shaped, result) for shaped in chain.programs[segment.name]]
        of_segment = chain.generation.get(runtime, {}).get(segment.name, [])
        generation += [_program(shaped, result) for shaped in of_segment]
        named = {entry.file for entry in result.entries.values()}
        shared |= dict.fromkeys(file.path for file in result.files if file.path not in named)
        sizes |= {file.path: file.bytes for file in result.files}
    target = lowering(runtime)
    if isinstance(target, Linking):
        apart, generation = generation, [
            _linked(folder, runtime, target, [program for program in generation if program.kind == kind])
            for kind in dict.fromkeys(program.kind for program in generation)
        ]  # fmt: skip
        sizes = {path: size for path, size in sizes.items() if path not in {program.file for program in apart}}
        sizes |= {program.file: (folder / program.file).stat().st_size for program in generation}
    versions = {library: f"{version}" for library, version in target.versions().items()}
    return m.RuntimeSpec(
        precision, versions, tuple(programs), sum(sizes.values()), tuple(shared), generation=tuple(generation)
    )


def _linked(folder: Path, runtime: str, target: Linking, programs: Sequence[m.ProgramSpec]) -> m.ProgramSpec:
    """Link a chain to one program, which replaces its files and counts as the last segment's."""
    whole = Path(programs[-1].file)
    file = folder / runtime / f"{programs[-1].kind}_1x{programs[-1].length}{whole.suffix}"
    content = target.link([(program, (folder / program.file).read_bytes()) for program in programs])
    file.write_bytes(content)
    for program in programs:
        (folder / program.file).unlink()
    inputs, outputs = linked_tensors(programs)
    return msgspec.structs.replace(
        programs[-1],
        file=file.relative_to(folder).as_posix(),
        inputs=inputs,
        outputs=outputs,
        flops=sum(program.flops for program in programs),
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

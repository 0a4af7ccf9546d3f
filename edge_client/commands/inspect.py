"""`spry inspect`: what a bundle holds, what its programs cost, and how well it was verified."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from edge_client.bundle.chain import CutCost, cuts
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest, RuntimeSpec, write
from edge_client.format import count, size
from edge_client.runtimes.processors import remark, this_processor


def command(
    bundle: Annotated[Path, typer.Argument(help="A bundle's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the manifest, and each runtime's cuts.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not compare files with their hashes.")] = False,
) -> None:
    """Show a bundle's units, programs, sizes, memory and verification.

    Example: spry inspect bundle/ --json
    """
    opened = Bundle.open(bundle, verify=not no_verify)
    if as_json:
        typer.echo(report(opened.manifest))
    else:
        show(
            opened,
            Console(markup=False, highlight=False, emoji=False),
            checked="not compared with hashes" if no_verify else "all files are whole",
        )


def report(manifest: Manifest) -> str:
    """Return the manifest with every offered cut of every runtime, as JSON."""
    fields = msgspec.json.decode(write(manifest))
    fields["cuts"] = {name: msgspec.to_builtins(_offers(manifest, name)) for name in sorted(manifest.runtimes)}
    return msgspec.json.format(msgspec.json.encode(fields), indent=1).decode()


def show(bundle: Bundle, console: Console, *, checked: str) -> None:
    manifest = bundle.manifest
    console.print(_summary(bundle, checked))
    console.print(_units(manifest))
    for name, runtime in manifest.runtimes.items():
        console.print(_programs(name, runtime))
        if note := remark(runtime.processor, this_processor()):
            console.print(f"{name}: {note}")
        console.print(_cut_table(name, _offers(manifest, name)))
    console.print(_verification(manifest))


@dataclass(frozen=True)
class Offer:
    """A cut at a shape and a number of directions for which there are programs."""

    batch: int
    length: int
    directions: int
    cut: CutCost


def _offers(manifest: Manifest, runtime: str) -> list[Offer]:
    return [
        Offer(batch, length, count, cut)
        for batch, length in manifest.shapes
        for count in manifest.directions
        for cut in cuts(manifest, runtime, batch=batch, length=length, directions=count)
    ]


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(title: str, columns: Iterable[str], *, numbers: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _summary(bundle: Bundle, checked: str) -> Table:
    manifest, model = bundle.manifest, bundle.manifest.model
    table = Table(box=None, show_header=False)
    table.add_row(
        "model", f"{model.name} ({model.architecture}, {model.blocks} blocks, {count(model.parameters)} weights)"
    )
    table.add_row("task", f"{model.task}: {', '.join(model.labels)}" if model.labels else model.task)
    trained = sum(unit.size for unit in manifest.units)
    head = manifest.head_size
    table.add_row(
        "adapter",
        f"{manifest.adapter.method}: {len(manifest.units)} units, {count(trained)} weights; head {count(head)}",
    )
    table.add_row("inputs", ", ".join(manifest.inputs))
    table.add_row("shapes", ", ".join(f"{batch}x{length}" for batch, length in manifest.shapes) + " (batch x length)")
    table.add_row("directions", ", ".join(f"K={k}" for k in manifest.directions) or "none")
    if manifest.generation is not None:
        table.add_row("generates", f"{manifest.generation.length} tokens of prompt and answer")
    table.add_row("tokenizer", manifest.tokenizer or "none: programs are given token ids")
    table.add_row("files", f"{len(manifest.files)}, {size(bundle.bytes)}; {checked}")
    table.add_row("made by", manifest.made_by)
    return table


def _units(manifest: Manifest) -> Table:
    table = _table("Units", ("unit", "used in", "shapes"), numbers=("number", "weights"))
    for number, unit in enumerate(manifest.units):
        shapes = " ".join("x".join(map(str, parameter.shape)) for parameter in unit.parameters)
        table.add_row(unit.name, ", ".join(unit.segments), shapes, str(number), count(unit.size))
    return table


def _programs(name: str, runtime: RuntimeSpec) -> Table:
    versions = ", ".join(f"{library} {version}" for library, version in sorted(runtime.versions.items()))
    precision = f"{runtime.precision} for {runtime.processor}" if runtime.processor else runtime.precision
    title = f"Programs for {name}, precision {precision}, weights {size(runtime.weights_bytes)} ({versions})"
    table = _table(title, ("program", "file"), numbers=("FLOPs", "memory to load", "to run"))
    for program in runtime.programs:
        where = f"{program.file}#{program.method}" if program.method else program.file
        table.add_row(program.name, where, count(program.flops), size(program.load_bytes), size(program.peak_bytes))
    return table


def _cut_table(name: str, offers: list[Offer]) -> Table:
    numbers = ("step FLOPs", "memory to load", "to run", "suffix FLOPs", "memory to load", "to run")
    table = _table(f"Cuts for {name}", ("cut", "batch x length", "K"), numbers=numbers)
    for offer in offers:
        costs = [
            text
            for part in (offer.cut.step, offer.cut.suffix)
            for text in (count(part.flops), size(part.load_bytes), size(part.peak_bytes))
        ]
        table.add_row(offer.cut.name, f"{offer.batch}x{offer.length}", str(offer.directions), *costs)
    return table


def _verification(manifest: Manifest) -> Table:
    table = _table("Verification", ("runtime", "precision", "what"), numbers=("value", "bound", ""))
    for check in manifest.verification:
        bound = "" if check.bound is None else f"{check.bound:.3g}"
        verdict = "passed" if check.passed else "FAILED"
        table.add_row(check.runtime, check.precision, check.what, f"{check.value:.3g}", bound, verdict)
    return table

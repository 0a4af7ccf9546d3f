"""`spry bench`: what a bundle's steps cost on this machine, and what other packages measure.

Entry points of the group ``spry.benches`` are functions that become subcommands; their modules import their libraries
when they are called. Those of the group ``spry.baselines`` are measured beside a bundle.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import msgspec
import typer

from edge_client import plugins
from edge_client.bundle.chain import Chain, exact_cut
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from edge_client.commands.options.panels import PanelCommand
from edge_client.commands.progress import Terminal
from edge_client.errors import SpryError
from edge_client.pictures import require_drawing
from edge_client.runtimes.runtime import available, command_for

from .figures import NotMeasured, StepFigures, beside_stock, from_baseline, megabytes, show
from .plot import draw
from .worker import EXACT_BLOCKS, FORWARD, BenchWork, Measured, Variant, decode, encode, variants

command = typer.Typer(
    help="Measure a bundle on this machine, or the noise of gradients.", add_completion=False, rich_markup_mode=None
)


AT_ONCE = 2
"""Processes whose memory is measured side by side."""
OUTSIDE_LINES = 8
"""The lines of `export.check.baselines`."""


class BenchError(SpryError):
    """A measurement could not be made."""


class Baseline(Protocol):
    """A function that measures something else on a bundle's shapes."""

    def __call__(
        self, bundle: Path, batch: int, length: int, rounds: int, threads: int, /
    ) -> Iterable[Mapping[str, Any]]:
        """Rows of the result: at least `runtime`, `step` and `cpu_ms` of `StepFigures`.

        In the place of one that could not be measured, `runtime`, `step` and `skipped`: why, in one line. It is called
        before the bundle is measured and read after it; what has a `close` is closed at the end.
        """
        ...


@command.callback()
def bench() -> None:
    """Measure a bundle on this machine, or the noise of gradients."""


def step(
    bundle: Annotated[Path, typer.Argument(help="A bundle's folder.")],
    runtime: Annotated[
        str, typer.Option(help="Runtimes, separated by commas; by default all that are installed.")
    ] = "",
    shape: Annotated[str, typer.Option(help="Batch x length, such as 8x64; by default the bundle's first.")] = "",
    cuts: Annotated[str, typer.Option(help="Cuts to measure, separated by commas: numbers, or `all`.")] = "",
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds to measure, fewer for long steps; the median is shown.")
    ] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime.")] = 1,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="Measure stock ONNX Runtime, ExecuTorch and eager PyTorch too, where they are installed.",
        ),
    ] = True,
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Measure each step once more with one program held at a time.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Draw time against peak memory into this .svg file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Measure time and memory of each kind of step, for each runtime in the bundle and each cut.

    Example: spry bench step bundle/ --runtime onnx --cuts all
    """
    if plot:
        _require_place(plot)
    opened = Bundle.open(bundle, verify=False)
    manifest = opened.manifest
    batch, length = _shape(shape, manifest.shapes)
    chains = [Chain(manifest, name, batch, length, manifest.directions[0]) for name in _runtimes(runtime, manifest)]
    chosen = [_cuts(cuts, chain) for chain in chains]
    measured: list[StepFigures | NotMeasured] = []
    with Terminal().shown() as progress, ExitStack() as closing:
        sizes = opened.folder, batch, length, rounds, threads
        outside = _begun(closing, *sizes) if baselines else []
        for chain, starts in zip(chains, chosen, strict=True):
            mixed = [cut for cut in starts if exact_cut(manifest, cut, EXACT_BLOCKS) > cut]
            wanted = variants(starts, manifest.directions, mixed)
            work = BenchWork(str(opened.folder), chain.runtime, batch, length, threads, rounds, wanted, memory=False)
            measure = _both_ways if low_memory else _rows
            with progress.stage(f"measuring {chain.runtime}", (1 + len(wanted)) * (1 + low_memory)):
                measured += measure(work, chain, progress.advance)
        if baselines:
            with progress.stage("measuring others beside it", OUTSIDE_LINES):
                for row in itertools.chain.from_iterable(outside):
                    measured.append(row)
                    progress.advance(f"{row.runtime}, {row.step}")
    rows = beside_stock(row for row in measured if isinstance(row, StepFigures))
    skipped = [row for row in measured if isinstance(row, NotMeasured)]
    for one in skipped:
        typer.echo(str(one), err=True)
    title = f"{manifest.model.name}, {batch} x {length}, {threads} thread(s), median of up to {rounds}"
    if as_json:
        machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
        result = {"machine": machine, "batch": batch, "length": length, "threads": threads}
        typer.echo(json.dumps(result | {"rows": msgspec.to_builtins(rows), "skipped": msgspec.to_builtins(skipped)}))
    else:
        show(rows, title)
    if plot:
        plot.write_text(draw(rows, title), encoding="utf-8")


def _runtimes(text: str, manifest: Manifest) -> list[str]:
    named = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    names = named or [name for name in manifest.runtimes if name in available()]
    if not names:
        raise BenchError(
            f"none of the bundle's runtimes ({', '.join(manifest.runtimes)}) is installed here; "
            f"install one: {command_for(manifest.runtimes)}"
        )
    return names


def _shape(text: str, offered: Sequence[tuple[int, int]]) -> tuple[int, int]:
    if not text:
        return offered[0]
    for batch, length in offered:
        if text == f"{batch}x{length}":
            return batch, length
    raise BenchError(f"the bundle has no shape {text!r}; it has {', '.join(f'{b}x{t}' for b, t in offered)}")


def _cuts(text: str, chain: Chain) -> list[int]:
    """Return the cuts to measure from: by default the first, the middle and the last one."""
    starts = chain.starts()
    if text == "all" or not starts:
        return starts
    if not text:
        return sorted({starts[0], starts[len(starts) // 2], starts[-1]})
    try:
        chosen = [int(part) for part in text.split(",")]
    except ValueError:
        raise BenchError(f"--cuts takes numbers between commas or `all`, got {text!r}") from None
    unknown = [cut for cut in chosen if cut not in starts]
    if unknown:
        raise BenchError(f"no cut at {unknown[0]}; the bundle's cuts: {', '.join(str(start) for start in starts)}")
    return chosen


def _both_ways(work: BenchWork, chain: Chain, tell: Callable[[str], None]) -> Iterator[StepFigures | NotMeasured]:
    """Steps with their programs side by side, if there is memory for that, and with one at a time."""
    forward: float | None = None
    try:
        for row in _rows(work, chain, tell):
            forward = row.cpu_ms if row.step == FORWARD else forward
            yield row
    except BenchError as error:
        yield NotMeasured(work.runtime, "with programs side by side", str(error))
    low = [msgspec.structs.replace(variant, low_memory=True) for variant in work.variants]
    yield from _rows(msgspec.structs.replace(work, variants=low), chain, tell, forward)


def _rows(
    work: BenchWork, chain: Chain, tell: Callable[[str], None], forward: float | None = None
) -> Iterator[StepFigures]:
    """Yield a row for each variant, with its ratio to a forward: by default their own."""
    times = _worker(work)
    tell("times")
    forward = forward or next(one.cpu_ms for one in times if one.variant.kind == FORWARD)

    def memory(timed: Measured) -> Measured:
        return _worker(msgspec.structs.replace(work, variants=[timed.variant], memory=True))[0]

    with ThreadPoolExecutor(min(os.cpu_count() or 1, AT_ONCE)) as pool:
        for timed, found in zip(times, pool.map(memory, times), strict=True):
            yield _row(work.runtime, timed.variant, chain, timed, found, forward)
            tell(f"memory of {timed.variant.name}")


def _row(
    runtime: str, variant: Variant, chain: Chain, timed: Measured, memory: Measured, forward: float | None
) -> StepFigures:
    assert timed.cpu_ms is not None
    cut = chain.segments[variant.cut] if variant.kind != FORWARD else ""
    return StepFigures(
        runtime=runtime,
        step=variant.name,
        cut=cut,
        cpu_ms=round(timed.cpu_ms, 2),
        ratio=round(timed.cpu_ms / forward, 3) if forward else None,
        peak_mb=megabytes(memory.peak_bytes),
        peak_mapped_mb=megabytes(memory.peak_mapped_bytes),
        load_mb=megabytes(memory.load_bytes),
        rss_mb=megabytes(memory.rss_bytes),
    )


def _worker(work: BenchWork) -> list[Measured]:
    done = subprocess.run(
        [sys.executable, "-m", "edge_client.commands.bench.worker", encode(work)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise BenchError(f"measuring {work.runtime} failed: {last[0]}; leave it out with --runtime, or free memory")
    return decode(done.stdout)


def _begun(
    closing: ExitStack, folder: Path, batch: int, length: int, rounds: int, threads: int
) -> list[Iterable[StepFigures | NotMeasured]]:
    """Begin other packages' measurements on the same shapes; one whose libraries are missing says so."""
    begun: list[Iterable[StepFigures | NotMeasured]] = []
    for name in plugins.added(plugins.BASELINES):
        baseline = _baseline(name)
        if isinstance(baseline, NotMeasured):
            begun.append([baseline])
            continue
        rows = baseline(folder, batch, length, rounds, threads)
        closing.callback(getattr(rows, "close", lambda: None))
        begun.append(map(from_baseline, rows))
    return begun


def _baseline(name: str) -> Baseline | NotMeasured:
    try:
        return cast("Baseline", plugins.added(plugins.BASELINES)[name].load())
    except ImportError as error:
        return NotMeasured(name, "", str(error))


def _require_place(plot: Path) -> None:
    """Measuring takes minutes, which a picture without a place would cost."""
    require_drawing("--plot")
    if not plot.parent.is_dir():
        raise BenchError(f"--plot {plot}: there is no folder {plot.parent}; make it, or name another file")


for _name, _bench in plugins.Registry[Callable[..., None]](plugins.BENCHES, callable, {"step": step}).items():
    command.command(_name, cls=PanelCommand)(_bench)

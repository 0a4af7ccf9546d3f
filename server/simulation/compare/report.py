"""`spry report`: simulated runs beside each other, as a page, as Markdown, as JSON or in the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
import typer
from rich.console import Console

from edge_client.errors import SpryError
from server.cli.common import JsonOption, show_json, show_table
from server.simulation.compare.comparison import RIVALS, Comparison, MethodRow, RunGroup, compare
from server.simulation.compare.measures import SCORES
from server.simulation.compare.page import MADE_BY, ReportPage, html, markdown
from server.simulation.compare.runs import CONFIG, Run, find_runs
from server.simulation.compare.tables import Table, compact, overview, unfinished
from server.sinks.sink import Curves, Point, open_sink, send


class ReportError(SpryError):
    """A report cannot be written as it is asked for."""


class Format(str, Enum):
    html = "html"
    md = "md"


ENDINGS = {".html": Format.html, ".htm": Format.html, ".md": Format.md, ".markdown": Format.md}


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of `spry simulate`, or folders that hold them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write: .html, or .md with pictures beside it; by default the terminal."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="html or md; by default from the ending of --out.")
    ] = None,
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Simulated runs",
    to: Annotated[
        str | None, typer.Option(help="Send the curves there, as `spry job export` does, without a comparison.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare simulated runs: scores, costs and learning curves, over seeds.

    Example: spry report runs/ --out report.html
    """
    if to is not None:
        _send(runs, to, as_json=as_json)
        return
    chosen = _format(out, form) if out else None
    compared = compare(find_runs(runs))
    written = _write(ReportPage.of(compared, title), out, chosen) if out and chosen else []
    if as_json:
        show_json(as_builtins(compared) | {"written": [str(path) for path in written]})
    elif written:
        typer.echo(f"{', '.join(map(str, written))}: {sum(len(group.rows) for group in compared.groups)} rows")
    else:
        _print(compared)


def _send(runs: list[Path], to: str, *, as_json: bool) -> None:
    sent = send_runs(find_runs(runs), to)
    if as_json:
        show_json({"to": to, "sent": sent})
    else:
        typer.echo(f"{sent} new points are in {to}")


def send_runs(runs: Sequence[Run], to: str) -> int:
    """Each run under its folder, as seen from the one that holds them all; says how many points were new."""
    holder = os.path.commonpath([run.folder.parent for run in runs])
    return sum(_send_run(run, run.folder.relative_to(holder).as_posix(), to) for run in runs)


def _send_run(run: Run, name: str, to: str) -> int:
    sink = open_sink(to, Curves(str(run.folder), name, msgspec.to_builtins(run.config)))
    sent = send(sink, _points(run))
    if run.summary is not None:
        sink.end()
    return sent


def _points(run: Run) -> Iterator[Point]:
    """The rounds' times as if the first had begun when the run was asked for."""
    ends = (run.folder / CONFIG).stat().st_mtime + run.rounds["seconds"].cumsum()
    finite = run.rounds.where(np.isfinite(run.rounds)).stack().dropna()
    for (number, name), value in finite.items():
        yield Point(number, name, value, ends[number])


def as_builtins(compared: Comparison) -> dict[str, Any]:
    return {
        "common": compared.common,
        "groups": [
            group.task | {"score": group.score, "rows": [_row(compared, group, row) for row in group.rows]}
            for group in compared.groups
        ],
    }


def _row(compared: Comparison, group: RunGroup, row: MethodRow) -> dict[str, Any]:
    curves = {score: row.curve(score) for score in SCORES}
    return {
        "label": row.label,
        "kind": row.kind,
        "seeds": [run.config.seed for run in row.runs],
        "unfinished": [run.config.seed for run in row.unfinished],
        "folders": [str(run.folder) for run in row.runs],
        "settings": {name: row.settings[name] for name in compared.differing},
        "figures": _records(row.figures),
        **{f"to_{kind.replace('-', '_').replace(' ', '_')}": group.ahead(row, kind) for kind in RIVALS},
        "curves": {
            score: [{"round": number} | figure for number, figure in _records(curve).items()]
            for score, curve in curves.items()
            if len(curve)
        },
    }


def _records(spreads: pd.DataFrame) -> dict[Any, dict[str, float | None]]:
    return spreads.astype(object).where(spreads.notna(), None).to_dict("index")


def _format(out: Path, form: Format | None) -> Format:
    """Also whether the file may be written, before the work is done."""
    chosen = form or ENDINGS.get(out.suffix.lower())
    if chosen is None:
        raise ReportError(f"--out ends with {', '.join(ENDINGS)}, got {out.name}; or give --format")
    if not out.parent.is_dir():
        raise ReportError(f"the folder {out.parent} does not exist; make it, or choose another --out")
    if out.exists() and MADE_BY not in out.read_text(encoding="utf-8", errors="replace")[:200]:
        raise ReportError(f"{out} exists and is no report; choose another --out")
    return chosen


def _write(made: ReportPage, out: Path, form: Format) -> list[Path]:
    if form is Format.html:
        text, pictures = html(made), {}
    else:
        text, pictures = markdown(made, out.with_suffix(""))
    for path, content in {out: text, **pictures}.items():
        path.write_text(content, encoding="utf-8")
    return [out, *pictures]


def _print(compared: Comparison) -> None:
    console = Console(highlight=False)
    common = ", ".join(f"{name} {value}" for name, value in compared.common.items() if "." not in name)
    console.print(f"the same in all runs: {common}", markup=False)
    summary = overview(compared)
    if summary:
        _print_table(console, summary)
    for group in compared.groups:
        _print_table(console, compact(group))
        for note in unfinished(group):
            console.print(note, markup=False)


def _print_table(console: Console, table: Table) -> None:
    console.print(f"\n{table.title}", markup=False)
    show_table(table.headings, table.rows, "")

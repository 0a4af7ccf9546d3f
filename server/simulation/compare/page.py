"""A comparison as one HTML page without scripts, or as Markdown with pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from edge_client.pictures import style_sheet
from edge_client.tasks.task import ACCURACY
from server.simulation.compare.comparison import Comparison, RunGroup
from server.simulation.compare.curves import CLOCK, PASSES, Line, Panel, draw
from server.simulation.compare.scores import MAIN_SCORES, PERSONAL, SCORES
from server.simulation.compare.tables import (
    EXPLANATION,
    MARK,
    Table,
    curve_figures,
    overview,
    settings,
    show,
    tables,
    unfinished,
)

MADE_BY = "<!-- made by spry report -->"
"""The first line of a file that a later report may replace."""
_DRAWN = (*MAIN_SCORES, PERSONAL)


class Chart(NamedTuple):
    title: str
    measured: str
    svg: str
    figures: Table
    """The same figures for those who do not see the chart."""


class Chapter(NamedTuple):
    """A group of rows."""

    title: str
    charts: Sequence[Chart]
    tables: Sequence[Table]
    notes: Sequence[str]


class ReportPage(NamedTuple):
    """Everything that a page shows, in the order of the page."""

    title: str
    counted: str
    common: dict[str, str]
    job: dict[str, str]
    """Settings of the job that all rows share: many, and of little interest."""
    overview: Table | None
    chapters: Sequence[Chapter]
    settings: Table | None
    explanation: Sequence[str]
    labels: Sequence[str]

    @classmethod
    def of(cls, comparison: Comparison, title: str) -> ReportPage:
        rows = [row for group in comparison.groups for row in group.rows]
        labels = list(dict.fromkeys(row.label for row in rows))
        chapters: list[Chapter] = []
        for group in comparison.groups:
            charts = _charts(group, labels, sum(len(chapter.charts) for chapter in chapters))
            chapters.append(Chapter(group.title, charts, tables(group), unfinished(group)))
        runs, groups = sum(len(row.runs) for row in rows), len(comparison.groups)
        counted = f"{_many(runs, 'run')} in {_many(len(rows), 'row')}, {_many(groups, 'group')} of data and split"
        of_job = {name: value for name, value in comparison.common.items() if "." in name}
        common = {name: value for name, value in comparison.common.items() if name not in of_job}
        return cls(title, counted, common, of_job, overview(comparison), chapters, settings(comparison),
                   EXPLANATION, labels)  # fmt: skip

    def line(self, label: str) -> Line:
        """Return the line that charts draw for a row."""
        return Line(label, pd.DataFrame(), self.labels.index(label))


def html(report: ReportPage) -> str:
    from jinja2 import Environment

    source = resources.files("server.simulation.compare").joinpath("report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, keep_trailing_newline=True).from_string(source)
    return template.render(report=report, mark=MADE_BY, dagger=MARK, colours=style_sheet())


def markdown(report: ReportPage, pictures: Path) -> tuple[str, dict[Path, str]]:
    """Write the text and its pictures: names beside it that begin with `pictures`."""
    parts = [MADE_BY, f"# {report.title}", report.counted]
    parts.append(
        "\n".join(["| the same in all runs | |", "|---|---|", *map(_line, (report.common | report.job).items())])
    )
    if report.overview:
        parts += [f"## {report.overview.title}", _table(report.overview)]
    drawn: dict[Path, str] = {}
    for chapter in report.chapters:
        parts.append(f"## {chapter.title}")
        for chart in chapter.charts:
            picture = pictures.with_name(f"{pictures.name}-{len(drawn) + 1}.svg")
            drawn[picture] = chart.svg
            parts.append(f"![{chart.title}]({picture.name.replace(' ', '%20')})")
        for table in chapter.tables:
            parts += [f"**{table.title}**", _table(table)]
        parts += [f"{note}\\" for note in chapter.notes[:-1]] + list(chapter.notes[-1:])
    if report.settings:
        parts += [f"## {report.settings.title}", _table(report.settings)]
    parts += ["## How to read this", "\n".join(f"- {line}" for line in report.explanation)]
    return "\n\n".join(parts) + "\n", drawn


def _charts(group: RunGroup, labels: Sequence[str], before: int) -> list[Chart]:
    """Draw a chart for each score that a run has; `before` counts the page's charts above."""
    charts: list[Chart] = []
    for score in _DRAWN:
        curves = [(row.label, row.curve(score)) for row in group.rows]
        lines = [Line(label, curve, labels.index(label)) for label, curve in curves if len(curve)]
        if not lines:
            continue
        name = f"{SCORES[score].words} accuracy" if score in (ACCURACY.name, PERSONAL) else SCORES[score].words
        ends = "; ".join(f"{line.label} {show(line.points.iloc[-1], 'percent')} %" for line in lines)
        description = f"{name} over the rounds on {group.title}. At the end: {ends}."
        title = f"{group.title}: {name}"
        svg = draw(_panels(name, lines, group, score), title, description, name=f"chart-{before + len(charts) + 1}")
        charts.append(Chart(title, name, svg, curve_figures(group, score)))
    return charts


def _panels(name: str, lines: Sequence[Line], group: RunGroup, score: str) -> list[Panel]:
    """Draw a score over the rounds; over a device's passes, and over simulated time, where each row has them."""
    panels = [Panel(f"{name}, %", lines)]
    over = {
        PASSES: {row.label: row.curve_by_passes(score) for row in group.rows},
        CLOCK: {row.label: row.curve_by_clock(score) for row in group.rows},
    }
    for axis, curves in over.items():
        if all(len(curves[line.label]) for line in lines):
            told = [line._replace(points=curves[line.label]) for line in lines]
            panels.append(Panel(f"{name}, %", told, over=axis))
    return panels


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _table(table: Table) -> str:
    ruler = ["---", *["---:"] * (len(table.headings) - 1)]
    return "\n".join(map(_line, [table.headings, ruler, *table.rows]))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

"""A comparison as tables of text; a figure that no run has is an empty cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from edge_client.format import size
from server.simulation.compare.comparison import RIVALS, Comparison, MethodKind, MethodRow, RunGroup
from server.simulation.compare.convergence import INTERVAL
from server.simulation.compare.measures import METRICS, Measure, Quantity, Section
from server.simulation.compare.scores import SCORES

TITLES: dict[Section, str] = {
    "score": "Scores, %",
    "less": "Scores, the less the better",
    "time": "Rounds and time",
    "cost": "Per client and round",
}
MARK = "†"
"""The mark of a row that is not at its end."""
_SHOWN_ROUNDS = 12


class Table(NamedTuple):
    title: str
    headings: Sequence[str]
    """The first is that of the rows' names."""
    rows: Sequence[Sequence[str]]


EXPLANATION = (
    "Figures are means over the seeds, ± their sample standard deviation.",
    "(2 of 3) stands where one of three seeds has no such figure; an empty cell is a figure that no run has.",
    "The band around a line reaches from the lowest seed to the highest; a line ends where the first seed ends.",
    "Final is the score of the last evaluation, best the highest of all, fall how many points lie between the two.",
    ("To backprop, zero-order, head alone: points between a row's final score and that of the best row of that "
    "kind."),
    "Rounds and seconds to 95 % lead to the first evaluation that has 95 % of the final score.",
    (f"Converged is the paper's rule: from this round on the variance of the score over {INTERVAL} rounds no "
    "longer changes from one such interval to the next. A curve that rises evenly or stays flat meets it too."),
    "Bytes and numbers are means over the clients of all rounds; peak memory is a device's, for its largest step.",
)  # fmt: skip
"""An explanation of the figures."""


def overview(comparison: Comparison) -> Table | None:
    """Tabulate the final scores of all rows in all groups, where there are several groups."""
    if len(comparison.groups) < 2:
        return None
    labels = dict.fromkeys(row.label for group in comparison.groups for row in group.rows)
    lines: list[list[str]] = []
    for label in labels:
        rows = [next((row for row in group.rows if row.label == label), None) for group in comparison.groups]
        cells = [
            _cell(row, f"{group.score}.last", "percent") if row else ""
            for group, row in zip(comparison.groups, rows, strict=True)
        ]
        lines.append([label, *cells])
    return Table("Final scores, %", ["method", *(group.title for group in comparison.groups)], lines)


def tables(group: RunGroup) -> list[Table]:
    """Scores that should fall have a table where there are some."""
    sections = {section: _section(group, section) for section in TITLES}
    return [table for section, table in sections.items() if section != "less" or len(table.headings) > 1]


def compact(group: RunGroup) -> Table:
    """Shorten a table so that it fits a terminal."""
    shown = {f"{group.score}.last": "final", f"{group.score}.fall": "fall", "rounds_to_95": "rounds to 95 %"}
    columns = {shown[metric.key]: _column(group, metric) for metric in METRICS if metric.key in shown}
    return _table(f"{group.title}, {SCORES[group.score].words}, %", group, columns | _ahead(group, RIVALS[:2]))


def curve_figures(group: RunGroup, score: str) -> Table:
    """Tabulate a chart's values at some of its rounds."""
    curves = {row.label: row.curve(score) for row in group.rows}
    numbers = sorted(set().union(*(curve.index for curve in curves.values())))
    step = -(-len(numbers) // _SHOWN_ROUNDS) or 1
    chosen = numbers[::-1][::step][::-1]
    lines = [
        [label, *(show(curve.loc[number], "percent") if number in curve.index else "" for number in chosen)]
        for label, curve in curves.items()
        if len(curve)
    ]
    return Table(f"{SCORES[score].words} by round, %", ["method", *map(str, chosen)], lines)


def settings(comparison: Comparison) -> Table | None:
    """Tabulate all settings that differ between rows."""
    if not comparison.differing:
        return None
    headings = ["method", *comparison.differing]
    rows = [row for group in comparison.groups for row in group.rows]
    return Table(
        "Settings that differ",
        headings,
        [[row.label, *(row.settings[name] for name in comparison.differing)] for row in rows],
    )


def unfinished(group: RunGroup) -> list[str]:
    """Write a line for each run whose figures are not its last."""
    return [
        f"{MARK} {row.label}, seed {run.config.seed} has not ended: {run.last_round}"
        f"{f' of {run.config.rounds}' if run.config.rounds else ''} rounds"
        for row in group.rows
        for run in row.unfinished
    ]


def _section(group: RunGroup, section: Section) -> Table:
    columns: dict[str, list[str]] = {}
    if section == "score":
        columns["gradients"] = [row.kind or "" for row in group.rows]
        columns["seeds"] = [str(len(row.runs)) for row in group.rows]
    for metric in METRICS:
        if metric.section == section:
            columns[metric.heading] = _column(group, metric)
        if metric.section == section and metric.key == f"{group.score}.fall":
            columns |= _ahead(group, RIVALS)
    return _table(TITLES[section], group, columns)


def _table(title: str, group: RunGroup, columns: dict[str, list[str]]) -> Table:
    """Build a table without the columns in which no row has a figure."""
    kept = [heading for heading, cells in columns.items() if any(cells)]
    labels = [f"{row.label} {MARK}" if row.unfinished else row.label for row in group.rows]
    lines = [[label, *(columns[heading][i] for heading in kept)] for i, label in enumerate(labels)]
    return Table(title, ["method", *kept], lines)


def _column(group: RunGroup, metric: Measure) -> list[str]:
    return [_cell(row, metric.key, metric.unit) for row in group.rows]


def _ahead(group: RunGroup, rivals: Sequence[MethodKind]) -> dict[str, list[str]]:
    leads = {f"to {kind}": [group.ahead(row, kind) for row in group.rows] for kind in rivals}
    return {
        heading: ["" if value is None else f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}") for value in values]
        for heading, values in leads.items()
    }


def _cell(row: MethodRow, key: str, unit: Quantity) -> str:
    if key not in row.figures.index:
        return ""
    figure = row.figures.loc[key]
    missing = f" ({figure['seeds']:.0f} of {len(row.runs)})" if figure["seeds"] < len(row.runs) else ""
    return show(figure, unit) + missing


def show(figure: pd.Series, unit: Quantity) -> str:
    """The mean of a spread, and the deviation where its digits show one."""
    mean, deviation = figure["mean"], figure["deviation"]
    if unit == "bytes":
        differs = deviation > 0 and size(figure["low"]) != size(figure["high"])
        return f"{size(mean)} ± {size(deviation)}" if differs else size(mean)
    factor = 100 if unit in ("percent", "points") else 1
    decimals = 1 if factor == 100 else _decimals(mean)
    shown, apart = f"{factor * mean:,.{decimals}f}", f"{factor * deviation:,.{decimals}f}"
    if not math.isnan(deviation) and (factor == 100 or apart.strip("0.")):
        return f"{shown} ± {apart}"
    return shown.rstrip("0").rstrip(".") if factor == 1 and decimals else shown


def _decimals(value: float) -> int:
    """Return the number of decimals that make three digits, and none for a whole number."""
    return 0 if value == round(value) else max(0, 2 - math.floor(math.log10(abs(value))))

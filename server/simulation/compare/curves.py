"""Learning curves as SVG, in lines that differ in their dashes too; `edge_client.pictures` has the style."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from edge_client.pictures import INK, LINES, as_svg, styled
from server.simulation.compare.comparison import spread
from server.simulation.compare.runs import Run, read_run
from server.simulation.compare.scores import SCORES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = "curves.svg"
DASHES = ("", "6 2", "1.5 1.5", "7 2 1.5 2", "4 1.5 1 1.5 1 1.5")
"""The dash patterns as in SVG: lengths of strokes and gaps."""
ROUNDS, PASSES = "round", "forward passes of a device"
CLOCK = "simulated time, in forward passes of the fastest client"
_HALF, _WHOLE = 17, 40
"""Letters of a label that fit into half a legend's width, and into all of it."""


class Line(NamedTuple):
    label: str
    points: pd.DataFrame
    """The spread over the seeds, by place on the axis."""
    number: int
    """Gives its colour and dashes: a row has the same in all charts."""

    @property
    def wrapped(self) -> str:
        return fill(self.label, _WHOLE)

    @property
    def colour(self) -> str:
        return LINES[self.number % len(LINES)]

    @property
    def dashes(self) -> str:
        return DASHES[self.number % len(DASHES)]


class Panel(NamedTuple):
    """A chart of lines, over rounds or what they cost."""

    measured: str
    lines: Sequence[Line]
    percent: bool = True
    over: str = ROUNDS


def draw(panels: Sequence[Panel], title: str, description: str, *, name: str = "curves", heading: bool = False) -> str:
    """Draw the panels beside each other, and under each the legend of its lines.

    All ids begin with the name, so that one page may hold several pictures. With a heading the title stands in the
    picture too, where no page around it says it.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with styled(name):
        lines = max(_legend_lines(panel) for panel in panels)
        size = 4.4 * len(panels), 2.7 + 0.2 * lines + 0.3 * heading
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw_panel(axes, panel)
        if heading:
            figure.suptitle(title, fontsize=11, color=INK)
        return as_svg(figure, title, description, name)


def write_curves(folder: Path) -> Path:
    """Draw one run's loss and scores into its folder."""
    run = read_run(folder)
    fields = [field for field, kind in SCORES.items() if kind.share and len(run.points(field))]
    panels = list[Panel]()
    if len(losses := _alone(run, "loss")) or not fields:  # a private run tells none
        panels.append(Panel("training loss", [Line("loss", losses, 0)], percent=False))
    if fields:
        lines = [Line(SCORES[field].words, _alone(run, field), number) for number, field in enumerate(fields)]
        panels.append(Panel("score, %", lines))
    config = run.config
    title = f"{config.method} on {config.data.name}, seed {config.seed}"
    file = run.folder / CURVES
    file.write_text(draw(panels, title, f"Loss and scores of {title} over the rounds.", heading=True), encoding="utf-8")
    return file


def _alone(run: Run, field: str) -> pd.DataFrame:
    return spread(run.points(field).to_frame())


def _legend_columns(panel: Panel) -> int:
    return 1 if any(len(line.label) > _HALF for line in panel.lines) else 2


def _legend_lines(panel: Panel) -> int:
    return -(-sum(line.wrapped.count("\n") + 1 for line in panel.lines) // _legend_columns(panel))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator

    scale = 100 if panel.percent else 1
    for line in panel.lines:
        points = line.points[["mean", "low", "high"]] * scale
        dashes = (0, tuple(float(length) for length in line.dashes.split())) if line.dashes else "solid"
        marker = "o" if len(points) == 1 else ""
        axes.plot(points.index, points["mean"], color=line.colour, linestyle=dashes, linewidth=1.5, label=line.wrapped,
                  marker=marker, markersize=4)  # fmt: skip
        if (line.points["seeds"] > 1).any():
            axes.fill_between(points.index, points["low"], points["high"], color=line.colour, alpha=0.14, linewidth=0)
    axes.set_xlabel(panel.over)
    axes.set_ylabel(panel.measured)
    axes.grid(axis="y")
    axes.tick_params(length=0)
    if panel.over == ROUNDS:
        axes.locator_params(axis="x", integer=True)
    elif panel.over == PASSES:  # a step of one method takes a hundred times what another's does
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    axes.margins(x=0.01)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=_legend_columns(panel), handlelength=3.2,
                labelspacing=0.35, borderaxespad=0)  # fmt: skip

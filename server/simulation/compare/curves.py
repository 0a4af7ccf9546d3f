"""Learning curves as SVG: colours for light and dark, text that stays text, lines that differ in their dashes too.

matplotlib (extra `simulate`) draws in the light colours. A style sheet within the picture exchanges them where a reader
prefers dark ones; a viewer that knows no style sheets shows the light ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

from server.simulation.compare.comparison import Spread
from server.simulation.compare.runs import Run, read_run
from server.simulation.compare.scores import SCORES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = "curves.svg"
INK, MUTED, GRID, CARD = "#17202e", "#55617a", "#d9dfe8", "#ffffff"
LINES = ("#0b62b5", "#c44900", "#0a7d5a", "#9c3a93", "#8a6a00", "#3a4253", "#c2185b", "#4b52c4")
"""Told apart by those who see few colours, and with a contrast of 3 on the card."""
_DARK_LINES = ("#6cb0ff", "#ff9457", "#3fc796", "#e08fd8", "#d9bb3d", "#cfd6e2", "#ff7aa8", "#a3a8ff")
DARK = {
    INK: "#e6ebf2", MUTED: "#a2aec0", GRID: "#303a49", CARD: "#191f29",
    **dict(zip(LINES, _DARK_LINES, strict=True)),
}  # fmt: skip
DASHES = ("", "6 2", "1.5 1.5", "7 2 1.5 2", "4 1.5 1 1.5 1 1.5")
"""As in SVG: lengths of strokes and gaps."""
SVG = "http://www.w3.org/2000/svg"
ROUNDS, PASSES = "round", "forward passes of a device"
_HALF, _WHOLE = 17, 40
"""Letters of a label that fit into half a legend's width, and into all of it."""


class Line(NamedTuple):
    label: str
    points: Sequence[tuple[float, Spread]]
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
    """The panels beside each other, and under each the legend of its lines.

    All ids begin with the name, so that one page may hold several pictures. With a heading the title stands in the
    picture too, where no page around it says it.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10, "text.color": INK, "axes.labelcolor": MUTED,
        "xtick.color": GRID, "ytick.color": GRID, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
        "axes.edgecolor": GRID, "grid.color": GRID, "grid.linewidth": 0.6, "axes.spines.top": False,
        "axes.spines.right": False, "figure.facecolor": CARD, "axes.facecolor": "none", "legend.frameon": False,
    }  # fmt: skip
    with rc_context(style):
        lines = max(_legend_lines(panel) for panel in panels)
        size = 4.4 * len(panels), 2.7 + 0.2 * lines + 0.3 * heading
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw_panel(axes, panel)
        if heading:
            figure.suptitle(title, fontsize=11, color=INK)
        out = StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return _finished(out.getvalue(), title, description, name)


def write_curves(folder: Path) -> Path:
    """Draw one run's loss and scores into its folder."""
    run = read_run(folder)
    panels = [Panel("training loss", [Line("loss", _alone(run, "loss"), 0)], percent=False)]
    fields = [field for field, kind in SCORES.items() if kind.share and run.points(field)]
    if fields:
        lines = [Line(SCORES[field].words, _alone(run, field), number) for number, field in enumerate(fields)]
        panels.append(Panel("score, %", lines))
    config = run.config
    title = f"{config.method} on {config.data.name}, seed {config.seed}"
    file = run.folder / CURVES
    file.write_text(draw(panels, title, f"Loss and scores of {title} over the rounds.", heading=True), encoding="utf-8")
    return file


def style_sheet() -> str:
    """Exchanges each colour, wherever it is used, for readers who prefer dark."""
    rules = [
        f'[style*="{use}: {light}"] {{ {use}: {dark} !important; }}'
        for light, dark in DARK.items()
        for use in ("fill", "stroke")
    ]
    return f"@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}"


def _alone(run: Run, field: str) -> list[tuple[int, Spread]]:
    return [(number, Spread.of([value])) for number, value in run.points(field)]


def _legend_columns(panel: Panel) -> int:
    return 1 if any(len(line.label) > _HALF for line in panel.lines) else 2


def _legend_lines(panel: Panel) -> int:
    return -(-sum(line.wrapped.count("\n") + 1 for line in panel.lines) // _legend_columns(panel))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator

    scale = 100 if panel.percent else 1
    for line in panel.lines:
        places = [place for place, _ in line.points]
        dashes = (0, tuple(float(length) for length in line.dashes.split())) if line.dashes else "solid"
        values = [scale * spread.mean for _, spread in line.points]
        marker = "o" if len(places) == 1 else ""
        axes.plot(places, values, color=line.colour, linestyle=dashes, linewidth=1.5, label=line.wrapped,
                  marker=marker, markersize=4)  # fmt: skip
        if any(spread.seeds > 1 for _, spread in line.points):
            low, high = ([scale * value for value in ends] for ends in _ends(line))
            axes.fill_between(places, low, high, color=line.colour, alpha=0.14, linewidth=0)
    axes.set_xlabel(panel.over)
    axes.set_ylabel(panel.measured)
    axes.grid(axis="y")
    axes.tick_params(length=0)
    if panel.over == ROUNDS:
        axes.locator_params(axis="x", integer=True)
    else:  # a step of one method takes a hundred times what another's does
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    axes.margins(x=0.01)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=_legend_columns(panel), handlelength=3.2,
                labelspacing=0.35, borderaxespad=0)  # fmt: skip


def _ends(line: Line) -> tuple[list[float], list[float]]:
    return [spread.low for _, spread in line.points], [spread.high for _, spread in line.points]


def _finished(svg: str, title: str, description: str, name: str) -> str:
    """With a name and a description for those who do not see it, ids of its own, and both colour schemes."""
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ET.fromstring(svg)  # noqa: S314 -- matplotlib wrote it
    metadata = root.find(f"{{{SVG}}}metadata")
    if metadata is not None:
        root.remove(metadata)
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif value.startswith("#") and key.endswith("href"):
                element.set(key, f"#{name}-{value[1:]}")
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    for position, (tag, text) in enumerate((("title", title), ("desc", description), ("style", style_sheet()))):
        element = ET.Element(f"{{{SVG}}}{tag}")
        element.text = text
        if tag != "style":
            element.set("id", f"{name}-{'title' if tag == 'title' else 'description'}")
        root.insert(position, element)
    return ET.tostring(root, encoding="unicode")

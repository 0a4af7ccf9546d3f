"""Time against peak memory of the lines of `spry bench step`, as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from edge_client.pictures import INK, LINES, as_svg, styled

from .figures import OUTSIDE, StepFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST = 0.1
"""MB: no smaller is measured, and a logarithm knows no zero."""
_OWN, _OUTSIDE = "o", "Ds^v"
_WHERE = tuple(
    (6 if side == "left" else -6, dy, side) for dy in (-3, 5, -11, 13, -19, 21, -27) for side in ("left", "right")
)
"""Places of a label around its point, in the order in which they are tried."""


class Kind(NamedTuple):
    """A runtime's steps of one kind: a point for each cut."""

    runtime: str
    step: str
    points: list[tuple[float, float]]
    """Peak memory and time, by time."""


def kinds(rows: Iterable[StepFigures]) -> list[Kind]:
    """List the steps that have both figures, in the order of the table."""
    by_kind: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row.peak_mb is not None:
            by_kind.setdefault((row.runtime, row.step), []).append((max(row.peak_mb, _LEAST), row.cpu_ms))
    return [
        Kind(runtime, step, sorted(points, key=lambda point: point[1])) for (runtime, step), points in by_kind.items()
    ]


def draw(rows: Sequence[StepFigures], title: str) -> str:
    """Draw a colour for each runtime, and other marks for what is measured beside the bundle."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn = kinds(rows)
    with styled("step"):
        figure = Figure(figsize=(7.6, 5.2), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
        axes = figure.subplots()
        _scale(axes)
        runtimes = dict.fromkeys(kind.runtime for kind in drawn)
        colours = {runtime: LINES[number % len(LINES)] for number, runtime in enumerate(runtimes)}
        for runtime, colour in colours.items():
            _draw_runtime(axes, runtime, [kind for kind in drawn if kind.runtime == runtime], colour)
        axes.margins(0.12)
        figure.suptitle(title, fontsize=11, color=INK)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, borderaxespad=0)
        figure.draw_without_rendering()
        _label(axes, drawn, colours)
        figure.set_layout_engine("none")
        return as_svg(figure, title, f"CPU time against peak memory of each kind of step: {title}.", "step")


def _scale(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("peak memory above what is loaded, without mapped files, MB")
    axes.set_ylabel("CPU time of a step, ms")
    axes.grid()
    axes.tick_params(length=0)


def _draw_runtime(axes: Axes, runtime: str, drawn: Sequence[Kind], colour: str) -> None:
    marker = _OUTSIDE[OUTSIDE.index(runtime)] if runtime in OUTSIDE else _OWN
    for i, kind in enumerate(drawn):
        peaks, times = zip(*kind.points, strict=True)
        axes.plot(peaks, times, color=colour, marker=marker, markersize=5, linewidth=0.6,
                  label="_" if i else runtime)  # fmt: skip


def _label(axes: Axes, drawn: Sequence[Kind], colours: Mapping[str, str]) -> None:
    """Name each kind once, at its slowest point, where no point and no other name stands, if there is such a place."""
    from matplotlib.transforms import Bbox

    spots = [axes.transData.transform(point) for kind in drawn for point in kind.points]
    scale = axes.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
    half = 4 * scale
    taken: list[Bbox] = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in spots]
    for kind in drawn:
        x, y = axes.transData.transform(kind.points[-1])
        width, height = 4 * len(kind.step) * scale, 7 * scale
        boxes = {
            (dx, dy, side): Bbox.from_bounds(x + dx * scale - width * (side == "right"), y + dy * scale, width, height)
            for dx, dy, side in _WHERE
        }
        free = [where for where, box in boxes.items() if not any(box.overlaps(other) for other in taken)]
        where = (free or [*boxes])[0]
        taken.append(boxes[where])
        axes.annotate(kind.step, kind.points[-1], where[:2], textcoords="offset points", ha=where[2], va="baseline",
                      fontsize=7, color=colours[kind.runtime])  # fmt: skip

"""The lines of `spry bench step`, what they are ratios to, and their table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

EAGER, STOCK_ONNX, STOCK_EXECUTORCH = "eager torch", "stock onnx", "stock executorch"
OUTSIDE = (EAGER, STOCK_ONNX, STOCK_EXECUTORCH)
STOCK_FP32, STOCK_INT8 = "forward fp32", "forward int8"


class StepFigures(msgspec.Struct, frozen=True):
    """A line of the result: a variant on a runtime, or a baseline, which may leave the rest out."""

    runtime: str
    step: str
    cpu_ms: float
    cut: str = ""
    ratio: float | None = None
    """CPU time by that of the same runtime's forward."""
    by_stock: float | None = None
    """CPU time by that of stock ONNX Runtime's forward in fp32: filled in for every line."""
    peak_mb: float | None = None
    """Highest while it runs, above what is loaded; mapped files left out."""
    peak_mapped_mb: float | None = None
    """The peak with what it reads of mapped files: weights that loading has not touched yet."""
    load_mb: float | None = None
    rss_mb: float | None = None


class NotMeasured(msgspec.Struct, frozen=True):
    """A line that could not be measured beside a bundle, and why."""

    runtime: str
    step: str
    skipped: str

    def __str__(self) -> str:
        return f"{' '.join(part for part in (self.runtime, self.step) if part)} not measured: {self.skipped}"


def from_baseline(row: Mapping[str, Any]) -> StepFigures | NotMeasured:
    """Return a baseline's row: figures, or `skipped` with the reason in one line."""
    return msgspec.convert(row, NotMeasured) if "skipped" in row else msgspec.convert(row, StepFigures)


def megabytes(value: int | None) -> float | None:
    return None if value is None else round(value / 1e6, 1)


def beside_stock(rows: Iterable[StepFigures]) -> list[StepFigures]:
    """Return each row with its ratio to the stock forward, where that was measured."""
    rows = list(rows)
    stock = next((row.cpu_ms for row in rows if (row.runtime, row.step) == (STOCK_ONNX, STOCK_FP32)), None)
    if not stock:
        return rows
    return [msgspec.structs.replace(row, by_stock=round(row.cpu_ms / stock, 3)) for row in rows]


def show(rows: Sequence[StepFigures], title: str) -> None:
    """Print the table; it fits into 80 letters."""
    table = Table(title=title, title_justify="left", caption=_CAPTION, caption_justify="left",
                  box=box.SIMPLE_HEAD, padding=0, show_edge=False)  # fmt: skip
    table.add_column("runtime")
    table.add_column("step", no_wrap=True)
    table.add_column("cut", no_wrap=True)
    for column in ("CPU ms", "÷ fwd", "÷ stock", "peak", "mapped", "load", "RSS"):
        table.add_column(column, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        if i and _group(rows[i - 1]) != _group(row):
            table.add_section()
        figures = (row.ratio, row.by_stock, row.peak_mb, row.peak_mapped_mb, row.load_mb, row.rss_mb)
        shown = ["" if figure is None else f"{figure:g}" for figure in figures]
        table.add_row(row.runtime, row.step, row.cut, f"{row.cpu_ms:.1f}", *shown)
    Console().print(table)


def _group(row: StepFigures) -> tuple[str, str]:
    return row.runtime, row.cut


_CAPTION = (
    "÷ fwd: by the same runtime's forward; ÷ stock: by stock ONNX Runtime's in fp32. MB: peak above what is loaded, "
    "mapped: with the files that it maps; load; whole process at its highest"
)

"""The tables of `spry bench estimate`, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from edge_client.commands.options.adapter import AdapterOptions
from server.simulation.noise.rows import WAY, NoiseRow, summarised
from server.simulation.plan import Plan

_CAPTION = """\
Cosines are medians over the units; first and last: means over the first and the last block.
+N         mixed: true gradients in the last N blocks
batch      with the true gradient of the step's own examples: the noise of the directions
theory     the same as expected where examples differ, to where they agree
error      squared distance from that gradient, by its own square
data       with the gradient over the data: the noise of the examples too
passes     forward passes of a client's step
gain       (batch x data of the exact gradient)², for a million forward passes of all holders"""
MILLION = 1_000_000
WIDTH = 100
"""The width of tables where there is no terminal."""


class AdapterNoise(NamedTuple):
    """The measured noise of an adapter."""

    adapter: AdapterOptions
    rows: Sequence[NoiseRow]


def as_dictionary(
    plan: Plan, weights: str, examples: int, repeats: int, adapters: Sequence[AdapterNoise]
) -> dict[str, Any]:
    """Return the figures as a dictionary for scripts."""
    return {
        "version": plan.version,
        "model": plan.model,
        "data": plan.data,
        "weights": weights,
        "clients": plan.clients,
        "alpha": plan.alpha,
        "length": plan.settings.training.length,
        "examples": examples,
        "repeats": repeats,
        "seed": plan.seed,
        "arithmetic": plan.arithmetic,
        "adapters": [
            {"adapter": asdict(adapter), "summary": summarised(rows), "rows": [asdict(r) for r in rows]}
            for adapter, rows in adapters
        ],
    }


def show(adapters: Sequence[AdapterNoise], title: str, *, by_unit: bool) -> None:
    """Show a table for each adapter."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(title, style="bold")
    for adapter, rows in adapters:
        sizes = sorted({row.weights for row in rows})
        count = len({row.unit for row in rows})
        size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        console.print()
        console.print(f"{adapter.told}: {count} units of {size} weights", style="bold")
        for table in _by_unit(rows) if by_unit else [_overview(rows)]:
            console.print(table)
    console.print(_CAPTION, style="dim")


def _overview(rows: Sequence[NoiseRow]) -> Table:
    table = _table("estimate", "K", "passes", "batch", "theory", "error", "data", "first", "last", "gain")
    lines = summarised(rows)
    best = max(lines, key=lambda line: line["median"]["efficiency"] or 0)
    for line in lines:
        median = line["median"]
        table.add_row(
            _label(line, lines),
            str(line["directions"]) if line["estimator"] != "exact" else "",
            f"{median['passes']:.2f}",
            _cosine(median["cosine_batch"]),
            _range(median["formula_differ"], median["formula_agree"]),
            _number(median["error"]),
            _cosine(median["cosine_data"]),
            _cosine(line["first_block"]["cosine_data"]),
            _cosine(line["last_block"]["cosine_data"]),
            _number(median["efficiency"], MILLION),
            style="bold" if line is best else None,
        )
    return table


def _by_unit(rows: Sequence[NoiseRow]) -> Iterator[Table]:
    """Yield a table for each way to estimate."""
    lines = [asdict(row) for row in rows]
    for _, group in groupby(lines, key=lambda line: tuple(line[name] for name in WAY)):
        own = list(group)
        table = _table("unit", "passes", "batch", "theory", "error", "data", "±", "gain")
        count = "" if own[0]["estimator"] == "exact" else f", K={own[0]['directions']}"
        table.title, table.title_justify = _label(own[0], lines) + count, "left"
        for line in own:
            table.add_row(
                ".".join(line["name"].split(".")[-5:]),
                f"{line['passes']:.2f}",
                _cosine(line["cosine_batch"]),
                _range(line["formula_differ"], line["formula_agree"]),
                _number(line["error"]),
                _cosine(line["cosine_data"]),
                _cosine(line["cosine_data_spread"]),
                _number(line["efficiency"], MILLION),
            )
        yield table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        left = column in ("estimate", "unit")
        table.add_column(column, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    return table


def _label(line: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Name the estimator, and the settings that differ among the lines."""
    parts = ["exact"]
    if line["estimator"] != "exact":
        owner = "each" if line["per_example"] else "shared"
        parts = ["central", line["kind"]] if line["estimator"] == "central" else [line["kind"], owner]
        parts += [f"+{line['exact_blocks']}"] if line["estimator"] == "mixed" else []

    def differ(name: str) -> bool:
        return len({other[name] for other in lines}) > 1

    parts += [f"B={line['batch']}"] if differ("batch") else []
    parts += [f"h={line['holders']}"] if differ("holders") else []
    parts += [f"u={line['per_client'] or 'all'}"] if differ("per_client") else []
    return " ".join(parts)


def _cosine(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}".replace("0.", ".", 1)


def _range(low: float | None, high: float | None) -> str:
    ends = dict.fromkeys([_cosine(low, 2), _cosine(high, 2)])
    return "-".join(ends)


def _number(value: float | None, times: float = 1) -> str:
    if value is None:
        return ""
    shown = value * times
    return f"{shown:.2f}" if shown < 100 else f"{shown:.0f}"

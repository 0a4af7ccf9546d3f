"""The tables of `spry bench estimate`, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd
import typer

from edge_client.commands.options.adapter import AdapterOptions
from server.simulation.noise.rows import VARIANT, NoiseRow, summarised
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
    """A table for each adapter."""
    typer.echo(title)
    for adapter, rows in adapters:
        sizes = sorted({row.weights for row in rows})
        count = len({row.unit for row in rows})
        size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        typer.echo(f"\n{adapter.told}: {count} units of {size} weights")
        for table in _by_unit(rows) if by_unit else [_overview(rows)]:
            typer.echo(f"\n{table.to_string(index_names=False)}")
    typer.echo(f"\n{_CAPTION}")


def _overview(rows: Sequence[NoiseRow]) -> pd.DataFrame:
    lines = summarised(rows)
    return pd.DataFrame(
        {
            "K": line["directions"] if line["estimator"] != "exact" else "",
            "passes": f"{line['median']['passes']:.2f}",
            "batch": _cosine(line["median"]["cosine_batch"]),
            "theory": _range(line["median"]["formula_differ"], line["median"]["formula_agree"]),
            "error": _number(line["median"]["error"]),
            "data": _cosine(line["median"]["cosine_data"]),
            "first": _cosine(line["first_block"]["cosine_data"]),
            "last": _cosine(line["last_block"]["cosine_data"]),
            "gain": _number(line["median"]["efficiency"], MILLION),
        }
        for line in lines
    ).set_axis([_label(line, lines) for line in lines])


def _by_unit(rows: Sequence[NoiseRow]) -> Iterator[pd.DataFrame]:
    """A table for each estimator with its settings."""
    lines = [asdict(row) for row in rows]
    for _, group in groupby(lines, key=lambda line: tuple(line[name] for name in VARIANT)):
        own = list(group)
        count = "" if own[0]["estimator"] == "exact" else f", K={own[0]['directions']}"
        table = pd.DataFrame(
            {
                "passes": f"{line['passes']:.2f}",
                "batch": _cosine(line["cosine_batch"]),
                "theory": _range(line["formula_differ"], line["formula_agree"]),
                "error": _number(line["error"]),
                "data": _cosine(line["cosine_data"]),
                "±": _cosine(line["cosine_data_spread"]),
                "gain": _number(line["efficiency"], MILLION),
            }
            for line in own
        )
        names = [".".join(line["name"].split(".")[-5:]) for line in own]
        yield table.set_axis(names).rename_axis(_label(own[0], lines) + count, axis=1)


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

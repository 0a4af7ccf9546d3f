"""Summarize measurements of `spry bench estimate`: a row for each unit, and lines over the units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from edge_client.bundle.chain import first_use
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from server.simulation.noise.choice import Candidate, cosine_with, forward_passes, noise

Vector = NDArray[np.float64]


class NoiseSample(NamedTuple):
    """One unit in one repeat; None where a gradient is zero."""

    batch: float | None
    """Cosine with the true gradient of the step's own examples."""
    data: float | None
    """Cosine with the gradient over all clients' examples."""
    exact: float | None
    """The cosine of the true gradient of the step's examples with that of the data."""
    error: float | None
    """Square of the distance from the true gradient of the step's examples, by that gradient's square."""
    expected: float | None
    """The cosine that theory expects instead of `batch`."""
    agreement: float | None
    """The square of the same gradient over the sum of the squares of the parts that have directions of their own."""


@dataclass(frozen=True)
class NoiseRow:
    """A unit; figures are means over the repeats."""

    estimator: str
    kind: str
    per_example: bool
    directions: int
    batch: int
    per_client: int
    exact_blocks: int
    """The model's last blocks that a step goes back through."""
    holders: int
    unit: int
    name: str
    block: int
    weights: int
    passes: float
    """The forward passes of one client's step."""
    cosine_batch: float | None
    """The estimator's noise alone."""
    cosine_data: float | None
    """The noise of the examples too: how well a step moves the model."""
    cosine_data_spread: float | None
    """Standard deviation over the repeats."""
    cosine_steady: float | None
    """The limit of `cosine_data` over many repeats: noise of directions points anywhere, so that it is the product of
    `cosine_batch` and of the true gradient's cosine with that of the data. It varies much less."""
    error: float | None
    agreement: float | None
    """The times that a step has the directions of one example: 1 where gradients are at right angles, and as many as
    there are examples and holders where they are equal."""
    formula: float | None
    """The cosine that theory expects instead of `cosine_batch`, as far as the examples agree."""
    formula_differ: float | None
    """The expected cosine where their gradients are at right angles."""
    formula_agree: float | None
    """The expected cosine where they are equal."""
    efficiency: float | None
    """Square of `cosine_steady` for each forward pass of all holders together."""


VARIANT = (
    "estimator",
    "kind",
    "per_example",
    "directions",
    "batch",
    "per_client",
    "exact_blocks",
    "holders",
)
FIGURES = (
    "passes", "cosine_batch", "cosine_data", "cosine_steady", "error", "agreement", "formula", "formula_differ",
    "formula_agree",
)  # fmt: skip


def row(manifest: Manifest, choice: Candidate, holders: int, number: int, samples: Sequence[NoiseSample]) -> NoiseRow:
    """Summarize a unit's measurements."""
    training, unit = choice.training, manifest.units[number]
    (group,) = (units for units in choice.groups(len(manifest.units)) if number in units)
    passes = forward_passes(manifest, group, training)
    measured = pd.DataFrame(samples, dtype=float)
    measured["steady"] = measured["batch"] * measured["exact"]
    measured["formula"] = (1 + measured["expected"]) ** -0.5
    means = _known(measured.mean())
    steady = means["steady"]
    directed = kind_of(training).directed(manifest, training, group)
    told = training.estimator in ("forward", "mixed") and number in directed
    alone = told and len(directed) == 1  # else the others' gradients are noise too
    kind, count = training.kind, training.directions
    own = count * training.batch if training.per_example else count
    by_size = alone and unit.tangents == "weights"  # else what enters and leaves its factor decides

    return NoiseRow(
        estimator=training.estimator,
        kind=training.kind,
        per_example=training.per_example,
        directions=training.directions,
        batch=training.batch,
        per_client=choice.per_client,
        exact_blocks=training.exact_blocks,
        holders=holders,
        unit=number,
        name=unit.name,
        block=manifest.segments[first_use(manifest, unit)].first_block,
        weights=unit.size,
        passes=passes,
        cosine_batch=means["batch"],
        cosine_data=means["data"],
        cosine_data_spread=_known(measured.std())["data"],
        cosine_steady=steady,
        error=means["error"],
        agreement=means["agreement"] if told else None,
        formula=means["formula"] if alone else None,
        formula_differ=cosine_with(noise(kind, unit.size, count)) if by_size else None,
        formula_agree=cosine_with(noise(kind, unit.size, own) / holders) if by_size else None,
        efficiency=None if steady is None else max(steady, 0.0) ** 2 / (passes * holders),
    )


def summarised(rows: Sequence[NoiseRow]) -> list[dict[str, Any]]:
    """Medians over the units, and means over the first and last block, of each estimator with its settings."""
    table = pd.DataFrame(map(asdict, rows)).astype(dict.fromkeys(FIGURES, float))
    variants = table.groupby(list(VARIANT), sort=False)
    means = table.groupby([*VARIANT, "block"], sort=False)[list(FIGURES)].mean()
    parts = {
        "median": variants[list(FIGURES)].median(),
        "first_block": means.xs(table["block"].min(), level="block"),
        "last_block": means.xs(table["block"].max(), level="block"),
    }
    for part in parts.values():
        holders = part.index.get_level_values("holders")
        part["efficiency"] = part["cosine_steady"].clip(lower=0) ** 2 / (part["passes"] * holders)
    return [
        dict(zip(VARIANT, variant, strict=True))
        | {"units": int(count)}
        | {name: _known(part.loc[variant]) for name, part in parts.items()}
        for variant, count in variants.size().items()
    ]


def _known(figures: pd.Series) -> dict[str, float | None]:
    return {str(name): None if math.isnan(value) else value for name, value in figures.items()}


def cosine(one: Vector, other: Vector) -> float | None:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else None

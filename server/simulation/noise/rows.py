"""Summarize measurements of `spry bench estimate`: a row for each unit, and lines over the units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
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


WAY = (
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
    steady = _mean([None if s.batch is None or s.exact is None else s.batch * s.exact for s in samples])
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
        cosine_batch=_mean([sample.batch for sample in samples]),
        cosine_data=_mean([sample.data for sample in samples]),
        cosine_data_spread=_spread([sample.data for sample in samples]),
        cosine_steady=steady,
        error=_mean([sample.error for sample in samples]),
        agreement=_mean([sample.agreement for sample in samples]) if told else None,
        formula=_mean([cosine_with(e) for e in _known([s.expected for s in samples])]) if alone else None,
        formula_differ=cosine_with(noise(kind, unit.size, count)) if by_size else None,
        formula_agree=cosine_with(noise(kind, unit.size, own) / holders) if by_size else None,
        efficiency=_efficiency(steady, passes * holders),
    )


def summarised(rows: Sequence[NoiseRow]) -> list[dict[str, Any]]:
    """Summarize each way to estimate: medians over the units, and means over those of the first and last block."""
    ways: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in rows:
        values = asdict(one)
        ways.setdefault(tuple(values[name] for name in WAY), []).append(values)
    first, last = min(one.block for one in rows), max(one.block for one in rows)
    summary: list[dict[str, Any]] = []
    for way, lines in ways.items():
        parts = {
            "median": {name: _median([line[name] for line in lines]) for name in FIGURES},
            "first_block": {name: _mean([line[name] for line in lines if line["block"] == first]) for name in FIGURES},
            "last_block": {name: _mean([line[name] for line in lines if line["block"] == last]) for name in FIGURES},
        }
        line: dict[str, Any] = dict(zip(WAY, way, strict=True)) | {"units": len(lines)}
        for name, part in parts.items():
            efficiency = _efficiency(part["cosine_steady"], (part["passes"] or 0) * line["holders"])
            line[name] = part | {"efficiency": efficiency}
        summary.append(line)
    return summary


def _efficiency(value: float | None, passes: float) -> float | None:
    return None if value is None else max(value, 0.0) ** 2 / passes


def cosine(one: Vector, other: Vector) -> float | None:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else None


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return float(np.mean(known)) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return float(np.median(known)) if known else None


def _spread(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return float(np.std(known, ddof=1)) if len(known) > 1 else None

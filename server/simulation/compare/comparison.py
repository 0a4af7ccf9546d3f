"""Runs beside each other: those that differ in their seed alone are one row, those of the same task one group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd

from edge_client.commands.options.adapter import own_options, told_blocks
from server.jobs.settings import JobSettings
from server.simulation.compare.measures import METRICS, main_score
from server.simulation.compare.runs import Config, Run, RunError

MethodKind = Literal["backprop", "forward", "zero-order", "head alone"]
KINDS: dict[str, MethodKind] = {
    "exact": "backprop", "forward": "forward", "mixed": "forward", "auto": "forward", "central": "zero-order",
}  # fmt: skip
"""The kind of method of each estimator, in the order of the rows."""
RIVALS: tuple[MethodKind, ...] = ("backprop", "zero-order", "head alone")
"""The kinds of methods whose best row all others are compared with."""
TASK = ("data", "split", "model")
"""The settings that the rows of a group share."""
NATURAL = "natural"
"""A split by a column of the data."""
_SHORT = {"rank": "r"}
_NAMES = {"training.mode": "mode", "training.directions": "K"}
_PLACES = {"optimizers.units": "server ", "optimizers.head": "server head "}
"""The prefixes of settings that have the same names as the clients'."""
_OF_THE_RUN = {"seed", "rounds", "per_round"}
"""Settings of the job that the run's own configuration has too."""


def spread(values: pd.DataFrame) -> pd.DataFrame:
    """Give each row's mean over the seeds, sample deviation, ends, and how many seeds have a figure."""
    return pd.DataFrame({
        "mean": values.mean(axis=1), "deviation": values.std(axis=1), "low": values.min(axis=1),
        "high": values.max(axis=1), "seeds": values.count(axis=1),
    })  # fmt: skip


@dataclass(frozen=True)
class MethodRow:
    """Runs with the same settings, one for each seed."""

    label: str
    """The method, and the settings that tell its rows apart."""
    kind: MethodKind | None
    settings: dict[str, str]
    runs: tuple[Run, ...]
    figures: pd.DataFrame
    """The spread of each figure that some run has, by the key of its metric."""

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if run.summary is None]

    def mean(self, key: str) -> float | None:
        return self.figures["mean"].get(key)

    def curve(self, field: str) -> pd.DataFrame:
        """The spread of a field by round, as far as all seeds have gone."""
        return spread(self._of_all(field).dropna())

    def curve_by_clock(self, field: str) -> pd.DataFrame:
        """The same over simulated time instead of the rounds; empty where that is not known."""
        return self._over(field, self._of_all("clock"))

    def curve_by_passes(self, field: str) -> pd.DataFrame:
        """The same over the forward passes of a device instead of the rounds; empty where those are not known."""
        return self._over(field, pd.concat([run.spent() for run in self.runs], axis=1))

    def _of_all(self, field: str) -> pd.DataFrame:
        """A column for each seed."""
        return pd.concat([run.points(field) for run in self.runs], axis=1)

    def _over(self, field: str, places: pd.DataFrame) -> pd.DataFrame:
        curve = self.curve(field)
        known = places.reindex(curve.index)
        return curve[:0] if known.isna().to_numpy().any() else curve.set_index(known.mean(axis=1))


@dataclass(frozen=True)
class RunGroup:
    """Rows of one data set, split and model."""

    title: str
    task: dict[str, str]
    score: str
    """The one that is compared."""
    rows: tuple[MethodRow, ...]

    def ahead(self, row: MethodRow, kind: MethodKind) -> float | None:
        """Return a row's last score less that of the best row of a kind; None where the row is that one."""
        lasts = [(row.mean(f"{self.score}.last"), row) for row in self.rows if row.kind == kind]
        rivals = [(last, row) for last, row in lasts if last is not None]
        best, leader = max(rivals, key=itemgetter(0), default=(None, None))
        own = row.mean(f"{self.score}.last")
        return None if best is None or own is None or leader is row else own - best


@dataclass(frozen=True)
class Comparison:
    common: dict[str, str]
    """Settings that all runs share."""
    differing: tuple[str, ...]
    """Names of the others."""
    groups: tuple[RunGroup, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    described = pd.DataFrame([describe(run.config) for run in runs])
    described = described.fillna({name: _DEFAULTS.get(name, "") for name in described.columns})
    rows = described.groupby(list(described), sort=False).indices
    settings = described.drop_duplicates()
    names = list(settings)
    made = [
        _row(", ".join(_label(row, settings)), dict(row), [runs[i] for i in rows[tuple(row)]])
        for _, row in settings.iterrows()
    ]
    differing = tuple(name for name in names if settings[name].nunique() > 1)
    common = {name: settings[name].iloc[0] for name in names if name not in differing and settings[name].iloc[0]}
    made.sort(key=lambda row: [row.settings[name] for name in TASK])
    grouped = groupby(made, key=lambda row: {name: row.settings[name] for name in TASK})
    return Comparison(common, differing, tuple(_group(task, list(members), differing) for task, members in grouped))


def _row(label: str, settings: dict[str, str], runs: list[Run]) -> MethodRow:
    runs = sorted(runs, key=lambda run: run.config.seed)
    for one, other in pairwise(runs):
        if one.config.seed == other.config.seed:
            raise RunError(
                f"{one.folder} and {other.folder} are runs of the same settings and seed {one.config.seed}; "
                "leave one out"
            )
    measured = {metric.key: [metric.of(run) for run in runs] for metric in METRICS}
    figures = spread(pd.DataFrame(measured, dtype=float).T)
    return MethodRow(label, kind_of(runs[0].config), settings, tuple(runs), figures[figures["seeds"] > 0])


def _group(task: dict[str, str], rows: list[MethodRow], differing: Sequence[str]) -> RunGroup:
    """Build a group of rows by their kinds of methods, the best first."""
    score = main_score(*(run for row in rows for run in row.runs))
    kinds = [*KINDS.values(), "head alone", None]
    ordered = sorted(rows, key=lambda row: (kinds.index(row.kind), -(row.mean(f"{score}.last") or -1.0)))
    split = "natural split" if task["split"] == NATURAL else f"Dirichlet {task['split']}"
    title = ", ".join([task["data"], split, *([task["model"]] if "model" in differing else [])])
    return RunGroup(title, task, score, tuple(ordered))


def kind_of(config: Config) -> MethodKind | None:
    """Return how a method gets the gradients of its units; None for an unknown estimator."""
    if config.numbers.units == 0:
        return "head alone"
    return KINDS.get(config.settings.get("training", {}).get("estimator", ""))


# --- settings and names ----------------------------------------------------------------------------------------------


def describe(config: Config) -> dict[str, str]:
    """Everything that makes a row, the most telling first: all but the seed, and the device that computed it."""
    adapter = config.adapter
    options = own_options(adapter.method) if adapter else ()
    parts = [(name, getattr(adapter, name)) for name in options]
    described = {
        "data": config.data.name,
        "split": NATURAL if config.alpha is None else _text(config.alpha),
        "model": config.model,
        "method": config.method,
        "able": _text(config.able if config.able < 1 else None),
        "others": config.others if config.able < 1 and config.others != "block" else "",
        "preset": _text(config.preset),
        "adapter": (adapter.method if adapter else "")
        + "".join(f" {_SHORT.get(name, name)}={_text(value)}" for name, value in parts if value is not None),
        "targets": _text(adapter.targets) if adapter else "",
        "last blocks": told_blocks(adapter.method, adapter.last_blocks) if adapter else "",
        "examples": Path(adapter.examples).name if adapter else "",
    }
    settings = _of_the_job(config.settings)
    described |= {name: settings.pop(name) for name in _NAMES.values() if name in settings}
    for name in ("clients", "per_round", "rounds", "arithmetic", "differences", "variance_bound"):
        described[name.replace("_", " ")] = _text(getattr(config, name))
    described["speeds"] = _text(config.speeds if config.speeds > 1 else None)
    described |= {f"data: {name}": _text(getattr(config.data, name)) for name in ("classes", "examples", "test")}
    return described | settings


def _of_the_job(given: dict[str, Any]) -> dict[str, str]:
    settings = {_NAMES.get(name, name): value for name, value in _flat(given) if name not in _OF_THE_RUN}
    for part in ("optimizers.units.", "optimizers.head."):
        if settings.get(f"{part}kind") == "fedavg":  # a mean has no rate and no memory
            settings |= {name: "" for name in settings if name.startswith(part) and name != f"{part}kind"}
    return settings


def _flat(settings: dict[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(cast("dict[str, Any]", value), f"{before}{name}.")
        else:
            yield f"{before}{name}", _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[Any]", value)))
    return f"{value:g}" if isinstance(value, float) else str(value)


_DEFAULTS = _of_the_job(JobSettings().model_dump(mode="json"))
"""The values of settings that a run's version did not know yet."""


def _label(row: pd.Series, like: pd.DataFrame) -> Iterator[str]:
    """The method and the fewest other settings that tell a row apart from those of the same task.

    The same settings get the same label in every task.
    """
    for name in like.columns.difference(TASK, sort=False):
        if name == "method" or (like.groupby(list(TASK))[name].nunique() > 1).any():
            if part := _part(name, row[name]):
                yield part
            like = like[like[name] == row[name]]


def _part(name: str, value: str) -> str:
    """Words that speak for themselves stand alone."""
    if name in ("method", "preset", "adapter", "mode") or not value:
        return value
    place, _, last = name.rpartition(".")
    return f"{_PLACES.get(place, '')}{last} {value}"

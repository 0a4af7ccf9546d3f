"""Runs beside each other: those that differ in their seed alone are one row, those of the same task one group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, cast

import msgspec

from edge_client.commands.options.adapter import own_options, told_blocks
from server.jobs.settings import JobSettings
from server.simulation.compare.convergence import INTERVAL
from server.simulation.compare.measures import main_score, metrics
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


class Spread(msgspec.Struct, frozen=True):
    """A figure over the seeds that have it."""

    mean: float
    deviation: float | None
    """The sample standard deviation; None of a single seed."""
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        deviation = stdev(values) if len(values) > 1 else None
        return cls(fmean(values), deviation, min(values), max(values), len(values))


class MethodRow(msgspec.Struct, frozen=True):
    """Runs with the same settings, one for each seed."""

    label: str
    """The method, and the settings that tell its rows apart."""
    kind: MethodKind | None
    settings: dict[str, str]
    runs: tuple[Run, ...]
    figures: dict[str, Spread]
    """The figures, by the key of a metric."""

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if run.summary is None]

    def curve(self, field: str) -> list[tuple[int, Spread]]:
        """Return a field's curve over the rounds, as far as all seeds have gone."""
        points = [dict(run.points(field)) for run in self.runs]
        shared = sorted(set.intersection(*map(set, points)))
        return [(number, Spread.of([values[number] for values in points])) for number in shared]

    def curve_by_clock(self, field: str) -> list[tuple[float, Spread]]:
        """Return the same curve over simulated time."""
        clocks = [dict(run.points("clock")) for run in self.runs]
        curve = self.curve(field)
        if not all(number in clock for clock in clocks for number, _ in curve):
            return []
        return [(fmean(clock[number] for clock in clocks), spread) for number, spread in curve]

    def curve_by_passes(self, field: str) -> list[tuple[float, Spread]]:
        """Return the same curve over the forward passes of a device."""
        spent = [run.spent() for run in self.runs]
        if not all(spent):
            return []
        return [(fmean(one[number] for one in spent), spread) for number, spread in self.curve(field)]


class RunGroup(msgspec.Struct, frozen=True):
    """Rows of one data set, split and model."""

    title: str
    task: dict[str, str]
    score: str
    """The one that is compared."""
    rows: tuple[MethodRow, ...]

    def ahead(self, row: MethodRow, kind: MethodKind) -> float | None:
        """Return how far a row's last score is above the best row of a kind; None for that row itself."""
        others = [other for other in self.rows if other.kind == kind and self._last(other) is not None]
        leader = max(others, key=lambda other: self._last(other) or 0.0, default=None)
        own = self._last(row)
        return None if leader is None or leader is row or own is None else own - (self._last(leader) or 0.0)

    def _last(self, row: MethodRow) -> float | None:
        figure = row.figures.get(f"{self.score}.last")
        return figure and figure.mean


class Comparison(msgspec.Struct, frozen=True):
    common: dict[str, str]
    """Settings that all runs share."""
    differing: tuple[str, ...]
    """Names of the others."""
    groups: tuple[RunGroup, ...]


def compare(runs: Sequence[Run], interval: int = INTERVAL) -> Comparison:
    rows: dict[tuple[str, ...], list[Run]] = {}
    described = [describe(run.config) for run in runs]
    names = list(dict.fromkeys(name for settings in described for name in settings))
    for run, settings in zip(runs, described, strict=True):
        rows.setdefault(tuple(settings.get(name, _DEFAULTS.get(name, "")) for name in names), []).append(run)
    settings = [dict(zip(names, values, strict=True)) for values in rows]
    labels = _labels(settings, names)
    made = [_row(*parts, interval) for parts in zip(labels, settings, rows.values(), strict=True)]
    differing = tuple(name for name in names if len({row[name] for row in settings}) > 1)
    common = {name: settings[0][name] for name in names if name not in differing and settings[0][name]}
    made.sort(key=lambda row: [row.settings[name] for name in TASK])
    grouped = groupby(made, key=lambda row: {name: row.settings[name] for name in TASK})
    return Comparison(common, differing, tuple(_group(task, list(members), differing) for task, members in grouped))


def _row(label: str, settings: dict[str, str], runs: list[Run], interval: int) -> MethodRow:
    runs = sorted(runs, key=lambda run: run.config.seed)
    for seed, same in groupby(runs, key=lambda run: run.config.seed):
        first, *others = same
        if others:
            raise RunError(
                f"{first.folder} and {others[0].folder} are runs of the same settings and seed {seed}; leave one out"
            )
    figures: dict[str, Spread] = {}
    for metric in metrics(interval):
        values = [value for run in runs if (value := metric.of(run)) is not None]
        if values:
            figures[metric.key] = Spread.of(values)
    return MethodRow(label, kind_of(runs[0].config), settings, tuple(runs), figures)


def _group(task: dict[str, str], rows: list[MethodRow], differing: Sequence[str]) -> RunGroup:
    """Build a group of rows by their kinds of methods, the best first."""
    score = main_score(*(run for row in rows for run in row.runs))
    kinds = [*KINDS.values(), "head alone", None]
    worst = Spread.of([-1.0])
    ordered = sorted(rows, key=lambda row: (kinds.index(row.kind), -row.figures.get(f"{score}.last", worst).mean))
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


def _labels(rows: Sequence[dict[str, str]], names: Sequence[str]) -> list[str]:
    """Label each row by the method and the fewest other settings that tell apart rows of the same task.

    The same settings get the same label in every task.
    """
    return [", ".join(_label(row, rows, [name for name in names if name not in TASK])) for row in rows]


def _label(row: dict[str, str], rows: Iterable[dict[str, str]], names: Sequence[str]) -> list[str]:
    parts: list[str] = []
    like = list(rows)
    for name in names:
        if name == "method" or _splits(like, name):
            parts += [part] if (part := _part(name, row[name])) else []
            like = [other for other in like if other[name] == row[name]]
    return parts


def _splits(rows: Iterable[dict[str, str]], name: str) -> bool:
    by_task: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        by_task.setdefault(tuple(row[key] for key in TASK), set()).add(row[name])
    return any(len(values) > 1 for values in by_task.values())


def _part(name: str, value: str) -> str:
    """Words that speak for themselves stand alone."""
    if name in ("method", "preset", "adapter", "mode") or not value:
        return value
    place, _, last = name.rpartition(".")
    return f"{_PLACES.get(place, '')}{last} {value}"

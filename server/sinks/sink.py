"""Send a job's curves to other places: a file for each kind of place, found by its entry point.

A sink says which points it has, and takes those that it lacks. So a job is sent as often as one likes, while it runs
and when it has ended, and no point is there twice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from edge_client import plugins
from edge_client.errors import SpryError


class SinkError(SpryError):
    """A place that takes no curves, or none that can be found."""


class Point(NamedTuple):
    """One number about one round."""

    round: int
    name: str
    value: float
    time: float
    """The time at which the round was over, in seconds since 1970."""

    @property
    def key(self) -> tuple[int, str]:
        return self.round, self.name


class Curves(NamedTuple):
    """The job or run that points are of."""

    id: str
    """The id by which a sink recognizes it."""
    name: str
    settings: Mapping[str, Any]


class Sink(ABC):
    """A place for one job's curves.

    Args:
        where: what stands behind the sink's name in `--to NAME:WHERE`.
        curves: whose they are.
    """

    def __init__(self, where: str, curves: Curves) -> None:
        self.where = where
        self.curves = curves

    @abstractmethod
    def known(self) -> set[tuple[int, str]]:
        """Return the keys of the points that are there."""

    @abstractmethod
    def add(self, points: Sequence[Point]) -> None:
        """Write points that are not there, in the order of their rounds; they can be read when this returns."""

    def end(self) -> None:  # noqa: B027 -- most places have nothing to note
        """Note that there will be no more points."""


SINKS: Mapping[str, type[Sink]] = plugins.Registry(
    plugins.SINKS, lambda sink: isinstance(sink, type) and issubclass(sink, Sink)
)


def open_sink(to: str, curves: Curves) -> Sink:
    """Open the sink that `--to NAME:WHERE` names."""
    name, colon, where = to.partition(":")
    if not colon or name not in SINKS:
        raise SinkError(f"--to takes one of {', '.join(SINKS)} and a place, as in tensorboard:runs/; got {to!r}")
    return SINKS[name](where, curves)


def send(sink: Sink, points: Iterable[Point]) -> int:
    """Give it what it lacks; says how many points that were."""
    known = sink.known()
    lacking = sorted({point.key: point for point in points if math.isfinite(point.value)}.items())
    new = [point for key, point in lacking if key not in known]
    if new:
        sink.add(new)
    return len(new)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings within settings as one list, `training.learning_rate` for instance; those that are not set left out."""
    listed: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            listed |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            listed[f"{prefix}{name}"] = str(value)
    return listed

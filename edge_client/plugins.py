"""Find what other distributions may add, by groups of entry points.

    [project.entry-points."spry.estimators"]        in the other distribution's pyproject.toml
    one-sided = "my_package.estimators:OneSided"

A group's type lives with those who use it, which may not be imported from here: it goes by its name. A `Registry` lists
a group's names without importing anything, this project's own first; what a name stands for is imported when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from .distribution import NAME
from .errors import PluginError

T = TypeVar("T")


@dataclass(frozen=True)
class EntryGroup:
    """A group of entry points."""

    name: str
    noun: str
    """The name of one of them, in messages."""
    type: str
    """The type that an entry point names: an instance of it, or a subclass where it is abstract."""
    former: str = ""
    """The group's name before, whose entry points still count."""


COMMANDS = EntryGroup("spry.commands", "command", "edge_client.commands.cli.Command")
CHECKS = EntryGroup("spry.checks", "check", "edge_client.commands.doctor.machine.DoctorCheck")
BENCHES = EntryGroup("spry.benches", "bench", "edge_client.commands.cli.Command")
BASELINES = EntryGroup("spry.baselines", "baseline", "edge_client.commands.bench.command.Baseline")
RUNTIMES = EntryGroup("spry.runtimes", "runtime", "edge_client.runtimes.runtime.Listing")
ADAPTERS = EntryGroup("spry.adapters", "adapter", "export.adapt.adapter.Adapter")
ESTIMATORS = EntryGroup("spry.estimators", "estimator", "edge_client.estimators.estimator.Estimator")
SERVER_OPTIMIZERS = EntryGroup(
    "spry.server_optimizers",
    "server optimizer",
    "edge_client.training.server_optimizers.OptimizerStep",
    former="spry.aggregations",
)
STRATEGIES = EntryGroup("spry.strategies", "strategy", "server.strategy.strategy.Strategy")
AGGREGATION_RULES = EntryGroup(
    "spry.aggregation_rules", "aggregation rule", "server.aggregation.rule.Rule", former="spry.means"
)
SINKS = EntryGroup("spry.sinks", "sink", "server.sinks.sink.Sink")
SIMULATION = EntryGroup("spry.simulation", "simulation's model", "server.simulation.compute.learner.Exporter")

GROUPS = (
    COMMANDS, CHECKS, BENCHES, BASELINES, RUNTIMES, ADAPTERS, ESTIMATORS, SERVER_OPTIMIZERS, STRATEGIES,
    AGGREGATION_RULES, SINKS, SIMULATION,
)  # fmt: skip


@cache
def added(group: EntryGroup) -> Mapping[str, EntryPoint]:
    """Return a group's entry points by name, this project's before others'; nothing is imported."""
    entries: dict[str, EntryPoint] = {}
    named = [entry for name in (group.name, group.former) if name for entry in entry_points(group=name)]
    for entry in sorted(named, key=_place):
        if (other := entries.get(entry.name)) is not None:
            raise _taken(group, entry, distribution(other))
        entries[entry.name] = entry
    return entries


def _place(entry: EntryPoint) -> tuple[bool, str, str]:
    owner = distribution(entry)
    return owner != NAME, entry.name, owner


def distribution(entry: EntryPoint) -> str:
    """Name the distribution that added an entry point."""
    return entry.dist.name if entry.dist else entry.module


def _taken(group: EntryGroup, entry: EntryPoint, by: str) -> PluginError:
    return PluginError(
        f"the {group.noun} {entry.name!r} is there twice, from {by} and from {distribution(entry)}: "
        "uninstall one of them"
    )


class Registry(Mapping[str, T], Generic[T]):
    """Look up plug-ins by name: this project's own, and those that other distributions add.

    Args:
        group: of the entry points.
        fits: whether what an entry point names is of the group's type.
        own: rows that need no entry point.
    """

    def __init__(self, group: EntryGroup, fits: Callable[[object], bool], own: Mapping[str, T] | None = None) -> None:
        self.group = group
        self._fits = fits
        self._own = dict(own or {})

    def _added(self) -> Mapping[str, EntryPoint]:
        entries = added(self.group)
        if taken := self._own.keys() & entries.keys():
            raise _taken(self.group, entries[min(taken)], NAME)
        return entries

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        entry = self._added()[name]
        who = f"the {self.group.noun} {name!r} of {distribution(entry)}"
        try:
            plugin = entry.load()
        except (ImportError, AttributeError) as error:
            raise PluginError(f"{who} cannot be imported: {error}; install it anew, or uninstall it") from error
        if not self._fits(plugin):
            raise PluginError(f"{who} must be of {self.group.type}, {entry.value} is not: upgrade or uninstall it")
        return plugin

    def find(self, name: str) -> T:
        """Look up what a job names, which may be a job of a newer version."""
        if name not in self:
            raise PluginError(
                f"this version of spry has no {self.group.noun} {name!r}; it has {', '.join(self)}: upgrade spry, or "
                "install the package that adds it"
            )
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._added()

    def __len__(self) -> int:
        return len(self._own) + len(self._added())

"""Which nodes take part in a round, and what each is given: by their own reports, as on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import CheckIn, Task
from server.jobs.settings import JobSettings
from server.policy.assignment import Fit, Needs, RoundSlot, choose
from server.policy.depths import Depth
from server.simulation.data.population import sampled
from server.simulation.run.tasks import task_of
from server.strategy.features import is_asked
from server.strategy.registry import strategy_of
from server.strategy.strategy import RoundContext

JOB = "flower"
NOWHERE = -1
"""The position of a node that has no partition."""


@dataclass(frozen=True)
class NodeOffer:
    """A node's runtimes, memory and rows, and its bundle."""

    check_in: CheckIn
    bundle: str
    """The sha256 of its bundle's manifest."""
    position: int = NOWHERE
    """The node's `partition-id`, which orders nodes in a way that a later run repeats."""


class NodeFleet:
    """Selects nodes for rounds, and assigns units to them.

    Args:
        settings: the job's, complete.
        manifest: the bundle's.
        bundle: the sha256 of that manifest.
    """

    def __init__(self, settings: JobSettings, manifest: Manifest, bundle: str) -> None:
        self._settings = settings
        self._manifest = manifest
        self._bundle = bundle
        self._needs = Needs(manifest, settings.training)

    def misfit(self, offer: NodeOffer) -> str | None:
        """Say why a node can take no part at all; None where it can."""
        if offer.bundle != self._bundle:
            return f"its bundle is {offer.bundle[:16]}, this run's is {self._bundle[:16]}: copy this one to it"
        if not self._runtimes(offer):
            return f"it has none of the bundle's runtimes ({', '.join(self._manifest.runtimes)})"
        if self._chosen(offer, self._slots(1, self._settings.per_round), None) is None:
            return f"no step fits its memory, {(offer.check_in.memory_bytes or 0) / 1e6:.0f} MB"
        return None

    def selected(self, number: int, offers: Mapping[int, NodeOffer]) -> list[int]:
        """Draw a round's nodes, each as likely as another in each slot; the same again where positions are known."""
        nodes = sorted(offers, key=lambda node: (offers[node].position == NOWHERE, offers[node].position, node))
        count = min(self._settings.per_round, len(nodes))
        return [nodes[place] for place in sampled(self._settings.seed or 0, number, len(nodes), count)]

    def assigned(
        self, number: int, version: int, nodes: Sequence[int], offers: Mapping[int, NodeOffer]
    ) -> dict[int, Task]:
        """Give each node the first free slot that its memory can hold; one that can hold none has no task."""
        free = self._slots(number, len(nodes))
        depth, tasks = self._depth(offers), dict[int, Task]()
        for node in nodes:
            chosen = self._chosen(offers[node], free, depth)
            if chosen is None:
                continue
            slot, fit = chosen
            free.remove(slot)
            task = task_of(
                self._settings, self._manifest, number, slot, fit.training,
                evaluate=self._settings.evaluates_in(number), measure=self._is_asked(slot.number, version, len(nodes)),
            )  # fmt: skip
            tasks[node] = replace(
                task, job=JOB, job_name=JOB, units=list(fit.units), cut=fit.cut, batch=fit.batch, runtime=fit.runtime,
                bundle=self._bundle, version=version, seconds=self._settings.deadline,
            )  # fmt: skip
        return tasks

    def _slots(self, number: int, count: int) -> list[RoundSlot]:
        return strategy_of(self._settings).configure(number, count, RoundContext(self._settings, self._manifest))

    def _runtimes(self, offer: NodeOffer) -> list[str]:
        return [name for name in offer.check_in.runtimes if name in self._manifest.runtimes]

    def _chosen(self, offer: NodeOffer, free: Sequence[RoundSlot], depth: Depth | None) -> tuple[RoundSlot, Fit] | None:
        said = offer.check_in
        return choose(
            self._settings.assignment, free, self._needs, self._runtimes(offer), said.memory_bytes,
            low_memory=said.low_memory, depth=depth,
        )  # fmt: skip

    def _limit(self, offer: NodeOffer) -> int | None:
        said = offer.check_in
        return self._needs.limit(self._runtimes(offer), said.memory_bytes, low_memory=said.low_memory)

    def _depth(self, offers: Mapping[int, NodeOffer]) -> Depth | None:
        if not self._needs.has_choice:
            return None
        limits = (self._limit(offer) for offer in offers.values())
        return self._settings.depth(self._manifest, [limit for limit in limits if limit is not None])

    def _is_asked(self, slot: int, version: int, slots: int) -> bool:
        """Tell whether the node in one of a round's slots measures its features, which the head's step goes by."""
        return self._settings.measures(self._manifest) and is_asked(version, slot, slots)

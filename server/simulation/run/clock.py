"""Simulated time: how long clients of several speeds take, in forward passes of the fastest.

What a server does and what goes over the wire takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.estimator import Estimator
from edge_client.wire.protocol import Training
from server.policy.passes import passes
from server.simulation.compute.crews import Crew
from server.simulation.compute.work import ClientPart
from server.simulation.data.draws import Purpose, order


def slowness(clients: int, speeds: float, seed: int) -> list[float]:
    """Return each client's slowness over the fastest: evenly spread by ratio from 1 to `speeds`."""
    places = order(clients, seed, Purpose.SPEEDS)
    return [speeds ** (int(place) / max(clients - 1, 1)) for place in places]


class Clock:
    """A simulated clock of clients' parts; the steps of a client are counted once."""

    def __init__(
        self, crew: Crew, manifest: Manifest, estimator_of: Callable[[Training], type[Estimator]], slow: Sequence[float]
    ) -> None:
        self._crew = crew
        self._manifest = manifest
        self._estimator_of = estimator_of
        self._slow = slow
        self._steps: dict[int, int] = {}

    def seconds(self, members: Sequence[ClientPart]) -> list[float]:
        """Return the seconds that each takes by the simulated clock."""
        new = [member for member in members if member.client not in self._steps]
        if new:
            (counted,) = self._crew.call("steps", [(new,)])
            self._steps |= dict(zip((member.client for member in new), counted, strict=True))
        return [self._of(member) for member in members]

    def _of(self, member: ClientPart) -> float:
        training = member.task.training
        step = passes(self._estimator_of(training), training, self._manifest, member.task.units)
        return self._slow[member.client] * self._steps[member.client] * step

"""Schedule buffered: who has reported when enough have, by a simulated clock; the others go on in the next round.

As on a server (`server.rounds.outcome.late`), with two simplifications: it is counted over all rounds, not the last
ones, which units were given out, and the next client is drawn among all that are free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import Task
from server.jobs.settings import JobSettings
from server.policy.assignment import RoundSlot
from server.rounds.outcome import late
from server.simulation.compute.work import ClientPart
from server.simulation.data.draws import Purpose, order
from server.simulation.run.clock import Clock
from server.simulation.run.state import RunState, Underway
from server.simulation.run.tasks import task_of
from server.simulation.run.variants import FleetVariants
from server.strategy.features import is_asked
from server.strategy.registry import strategy_of
from server.strategy.strategy import RoundContext

_ENDED = -1
"""The slot of a client whose part has ended for the age of its weights, which it hears when it is done."""


class Overlap:
    """Rounds of clients that go on from one to the next."""

    def __init__(
        self,
        settings: JobSettings,
        manifest: Manifest,
        clients: int,
        seed: int,
        clock: Clock,
        variants: FleetVariants,
    ) -> None:
        self._settings = settings
        self._manifest = manifest
        self._clients = clients
        self._seed = seed
        self._clock = clock
        self._variants = variants
        self._context = RoundContext(settings, manifest)

    def gathered(self, state: RunState, *, evaluate: bool) -> tuple[list[ClientPart], RunState]:
        """Return the clients whose updates complete a round, in the order of their slots, and the others' state."""
        moment = _Moment(state, state.model.version - self._settings.max_staleness)
        while len(moment.done) < self._settings.complete:
            self._fill(moment)
            moment.go_on()
        done = sorted(moment.done, key=lambda one: one.slot)
        return [ClientPart(one.client, self._task(one, evaluate=evaluate)) for one in done], moment.following(state)

    def _fill(self, moment: _Moment) -> None:
        """Give parts to clients that are free, until as many are at work as may be."""
        while len(moment.working) < self._settings.per_round and (free := self._free(moment)):
            client = free[int(order(len(free), self._seed, Purpose.TURNS, moment.drawn)[0])]
            part = Underway(client, self._slot(moment).number, moment.version, 0.0)
            (seconds,) = self._clock.seconds([ClientPart(client, self._task(part, evaluate=False))])
            moment.add(part._replace(ends=moment.clock + seconds))

    def _free(self, moment: _Moment) -> list[int]:
        busy = {one.client for one in (*moment.underway, *moment.done)}
        return [client for client in range(self._clients) if client not in busy]

    def _slots(self, number: int) -> list[RoundSlot]:
        return strategy_of(self._settings).configure(number, self._settings.invited, self._context)

    def _slot(self, moment: _Moment) -> RoundSlot:
        taken = {one.slot for one in (*moment.underway, *moment.done)}
        free = [slot for slot in self._slots(moment.version + 1) if slot.number not in taken]
        first = late.in_turn(free, moment.given, self._settings.per_round)
        return next(slot for slot in free if slot.number in first)

    def _task(self, one: Underway, *, evaluate: bool) -> Task:
        settings = self._settings
        measure = settings.measures(self._manifest) and is_asked(one.base, one.slot, settings.per_round)
        slot, variant = self._variants.slot(self._slots(one.base + 1)[one.slot]), self._variants.of(one.client)
        return task_of(settings, self._manifest, one.base + 1, slot, variant, evaluate=evaluate, measure=measure)


class _Moment:
    """The state of a round while updates arrive."""

    def __init__(self, state: RunState, oldest: int) -> None:
        self.clock = state.clock
        self.version = state.model.version
        self.underway = [one if one.base >= oldest else one._replace(slot=_ENDED) for one in state.underway]
        self.done: list[Underway] = []
        self.given = Counter(state.given)
        self.drawn = state.drawn

    @property
    def working(self) -> Sequence[Underway]:
        return [one for one in self.underway if one.slot != _ENDED]

    def add(self, part: Underway) -> None:
        self.underway.append(part)
        self.given[part.slot] += 1
        self.drawn += 1

    def go_on(self) -> None:
        """Put the clock on to when the next client is done."""
        following = min(self.underway, key=lambda one: (one.ends, one.client))
        self.underway.remove(following)
        self.clock = following.ends
        if following.slot != _ENDED:
            self.done.append(following)

    def following(self, state: RunState) -> RunState:
        """Return the state of a run that goes on, with the weights that those at work began with."""
        known = {**state.bases, self.version: state.model.weights}
        needed = {one.base for one in self.working}
        return replace(
            state,
            clock=self.clock,
            underway=tuple(self.underway),
            bases={version: known[version] for version in sorted(needed)},
            given=dict(self.given),
            drawn=self.drawn,
        )

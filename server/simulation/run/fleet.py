"""The simulated round, from top to bottom.

    select → assign → train → aggregate → evaluate

Selection apart, these are the server's own rules (`server.policy.assignment`, `server.rounds.outcome.outcomes`) and the
devices' own round (`edge_client.training.round`); what a real round also does, waiting and validating, has nothing
to do here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.tasks.registry import task_named
from edge_client.tasks.task import combined
from edge_client.training.features import without_moments
from edge_client.wire.protocol import Report, Task
from edge_client.wire.scalars import Participant, decode_report
from server.aggregation.registry import PLAIN
from server.jobs.completion import complete
from server.policy.assignment import RoundSlot
from server.policy.passes import passes
from server.privacy.budget import may_go_on, mechanism_of, sampled_spent, settled_by_chance
from server.privacy.noise import Noise
from server.rounds.outcome import late
from server.simulation.compute.crews import Crew
from server.simulation.compute.work import ClientPart, Trained, rows_together
from server.simulation.data.population import sampled, taken
from server.simulation.plan import Plan
from server.simulation.run.clock import Clock, slowness
from server.simulation.run.device import DeviceMemory
from server.simulation.run.overlap import Overlap
from server.simulation.run.state import RunState
from server.simulation.run.sums import summed
from server.simulation.run.tasks import task_of
from server.simulation.run.traffic import RoundTraffic
from server.simulation.run.variants import variants_in
from server.strategy.features import is_asked
from server.strategy.outliers import norms, usual
from server.strategy.registry import strategy_of
from server.strategy.scalars import step_of_scalars
from server.strategy.staleness import late_one
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution, Outcome

SCORED_TOGETHER = 256
"""Test examples of one call to a worker."""


class Fleet:
    """A plan's clients and its server."""

    def __init__(
        self, plan: Plan, manifest: Manifest, clients: int, test_examples: int, crew: Crew, costs: Path | None = None
    ) -> None:
        self.plan = plan
        self.settings = settled_by_chance(complete(plan.settings, manifest), clients)
        self.manifest = manifest
        self.clients = clients
        self.test_examples = test_examples
        self._crew = crew
        self._head = manifest.head_names
        self._variants = variants_in(plan, self.settings, manifest, clients)
        self._memory = DeviceMemory(costs, manifest, self.settings.training) if costs else None
        slow = slowness(clients, plan.speeds, plan.seed)
        self._clock = Clock(crew, manifest, plan.kind.estimator_of, slow) if plan.is_timed else None
        self._overlap = (
            Overlap(self.settings, manifest, clients, plan.seed, self._clock, self._variants)
            if self._clock is not None and self.settings.is_buffered
            else None
        )

    def may_go_on(self, state: RunState) -> bool:
        """Tell whether there is another round, and a budget that pays for it."""
        return state.round < self.settings.rounds and may_go_on(self.settings, state.round, self.clients)

    def play(self, state: RunState) -> tuple[RunState, dict[str, Any]]:
        """Run the next round, and return its state and metrics."""
        started, number = time.monotonic(), state.round + 1
        evaluated = number % self.settings.evaluate_every == 0 or number == self.settings.rounds
        personal = evaluated and self.plan.personal
        if self._overlap is not None:
            members, following = self._overlap.gathered(state, evaluate=personal)
        else:
            members = self._members(state, evaluate=personal)
            following = self._waited_for(state, members)
        if self.settings.training.mode == "epoch":
            outcome, traffic = self._epoch(members, state)
        else:
            outcome, traffic = self._iterations(members, state)
        figures = _told(outcome, private=self.settings.is_private)
        if self.settings.is_private:
            figures["epsilon"] = round(sampled_spent(self.settings, number, self.clients), 4)
        if self.settings.aggregation != PLAIN:
            figures["outliers"] = len({part for part, _ in outcome.odd})
        following = replace(following, model=outcome.model, round=number, last_change=self._change(state, outcome))
        trained = time.monotonic() - started
        if evaluated:
            figures |= self.scores(outcome.model.result)
        seconds = time.monotonic() - started
        steps = sum(report.steps for report in outcome.reports)
        if self.settings.training.mode == "iteration":
            steps *= self.settings.steps  # a report is of one
        costs = self._costs([member.task for member in members])
        measuring = sum(math.ceil(report.measured / self.settings.training.batch) for report in outcome.reports)
        return following, {
            "round": number,
            "seconds": round(seconds, 3),
            **({} if self._clock is None else {"clock": round(following.clock, 1)}),
            **figures,
            **traffic.totals(),
            **costs,
            "device_passes": round(costs["passes"] * steps + measuring, 2),
            "step_seconds": round(trained / max(steps, 1), 4),
        }

    def _costs(self, tasks: Sequence[Task]) -> dict[str, Any]:
        if not tasks:  # by chance nobody came
            return {"passes": 0.0}
        estimators = [self.plan.kind.estimator_of(task.training) for task in tasks]
        steps = [
            passes(kind, task.training, self.manifest, task.units) for kind, task in zip(estimators, tasks, strict=True)
        ]
        costs: dict[str, Any] = {"passes": round(fmean(steps), 4)}
        return costs | ({"peak_bytes": self._memory.peak(tasks)} if self._memory else {})

    # --- select, assign ---

    def _members(self, state: RunState, *, evaluate: bool) -> list[ClientPart]:
        settings, number = self.settings, state.round + 1
        clip = mechanism_of(settings).clip_at(state.model.clip) if settings.is_private else None
        among = taken if settings.is_private else sampled
        chosen = among(self.plan.seed, number, self.plan.present, settings.per_round)
        context = RoundContext(settings, self.manifest)
        slots = strategy_of(settings).configure(number, len(chosen), context)
        measures = settings.measures(self.manifest)
        asked = [measures and is_asked(number - 1, slot.number, settings.per_round) for slot in slots]

        def task(client: int, slot: RoundSlot, measure: bool) -> Task:
            variant = self._variants.of(client)
            return task_of(
                settings, self.manifest, number, slot, variant, evaluate=evaluate, measure=measure, clip=clip
            )

        each = zip(chosen, map(self._variants.slot, slots), asked, strict=True)
        return [ClientPart(client, task(client, slot, measure)) for client, slot, measure in each]

    def _groups(self, members: Sequence[ClientPart]) -> list[list[ClientPart]]:
        """Group clients that compute together: the same for any number of workers, and so are the last bits.

        They are about equally large, and where there are some an even number: of three, one of two workers has two.
        """
        size = max(1, rows_together(self.plan) // self.settings.training.batch)
        count = math.ceil(len(members) / size)
        count = min(count + (count > 1 and count % 2), len(members))
        edges = [len(members) * number // count for number in range(count + 1)] if count else []
        return [list(members[start:end]) for start, end in pairwise(edges)]

    def _waited_for(self, state: RunState, members: Sequence[ClientPart]) -> RunState:
        """Advance the clock until the slowest of a round's clients is done."""
        if self._clock is None:
            return state
        return replace(state, clock=state.clock + max(self._clock.seconds(members), default=0.0))

    # --- train, aggregate ---

    def _epoch(self, members: Sequence[ClientPart], state: RunState) -> tuple[Outcome, RoundTraffic]:
        start = state.model
        bases = {**state.bases, start.version: start.weights}
        trained = self._trained(members, bases, state.last_change or {})
        bound = self._bound(trained)
        updates = [
            self._contribution(member, one, start, bases)
            for member, one in zip(members, trained, strict=True)
            if one.variance <= bound
        ]
        traffic = RoundTraffic(self.manifest, self.settings.training)
        for member, one in zip(members, trained, strict=True):
            traffic.epoch(member.task, one, bases[member.task.version])
        if self.settings.secure_aggregation:
            both = [(member, one) for member, one in zip(members, trained, strict=True) if one.variance <= bound]
            return summed(self.plan, self.settings, self.manifest, start, both, len(members)), traffic
        known = usual([update.norms for update in updates])
        noise = Noise.of("simulation", self.plan.seed, state.round + 1)  # drawn again when a run is repeated
        context = RoundContext(self.settings, self.manifest, known, noise)
        return strategy_of(self.settings).aggregate(start, updates, context), traffic

    def _trained(
        self,
        members: Sequence[ClientPart],
        bases: Mapping[int, Weights],
        last_change: Mapping[str, Any],
    ) -> list[Trained]:
        """Train each client from the weights that it began with: those with the same ones compute together."""
        versions = sorted({member.task.version for member in members})
        alike = [[member for member in members if member.task.version == version] for version in versions]
        groups = [group for own in alike for group in self._groups(own)]
        calls = [(group, bases[group[0].task.version], last_change) for group in groups]
        by_task = {
            member.task.id: one
            for group, results in zip(groups, self._crew.call("train", calls), strict=True)
            for member, one in zip(group, results, strict=True)
        }
        return [by_task[member.task.id] for member in members]

    def _contribution(
        self, member: ClientPart, one: Trained, start: ServerState, bases: Mapping[int, Weights]
    ) -> Contribution:
        base = member.task.version
        update = Contribution(
            member.task.id,
            tuple(member.task.units),
            member.task.training,
            norms(without_moments(one.update), bases[base], self._head, self.manifest.units),
            Report(**one.report),
            lambda: one.update,
            device=str(member.client),
        )
        if not self.settings.is_buffered:
            return update
        return late_one(update, base, start, lambda version: ServerState(version, bases[version]))

    def _bound(self, trained: Sequence[Trained]) -> float:
        """Bound how much a client's gradients may vary; the steadiest client always takes part."""
        bound = self.plan.variance_bound
        return math.inf if bound is None else max(bound, min(one.variance for one in trained))

    def _iterations(self, members: Sequence[ClientPart], state: RunState) -> tuple[Outcome, RoundTraffic]:
        model, training = state.model, self.settings.training
        traffic = RoundTraffic(self.manifest, training)
        outcome: Outcome | None = None
        for iteration in range(self.settings.steps):
            given = model.weights, iteration, state.last_change or {}
            calls = [(group, *given) for group in self._groups(members)]
            reports = [data for group in self._crew.call("report", calls) for data in group]
            clients = [
                Participant(member.task.seed, tuple(member.task.units), decode_report(data, self.manifest, training))
                for member, data in zip(members, reports, strict=True)
            ]
            numbers = state.round + 1, iteration
            outcome = step_of_scalars(model, *numbers, clients, self.settings, self.manifest)
            traffic.iteration([member.task for member in members], reports, outcome, model, first=iteration == 0)
            model = outcome.model
        assert outcome is not None  # a round has a step or more
        return replace(outcome, reports=self._with_personal(outcome.reports, members, model)), traffic

    def _with_personal(
        self, reports: Sequence[Report], members: Sequence[ClientPart], model: ServerState
    ) -> list[Report]:
        """Add the scores of clients' own models to the reports, where that is asked for."""
        if not members[0].task.evaluate:
            return list(reports)
        calls = [(group, model.weights) for group in self._groups(members)]
        told = [one for group in self._crew.call("personal", calls) for one in group]
        return [
            replace(report, held_back=total, right_personal=right)
            for report, (total, right) in zip(reports, told, strict=True)
        ]

    def _change(self, state: RunState, outcome: Outcome) -> Weights | None:
        if self.plan.kind.estimator is None:
            return None
        before = state.model.weights
        return {name: value - before[name] for name, value in outcome.model.weights.items()}

    # --- evaluate ---

    def scores(self, weights: Weights) -> dict[str, float]:
        """Score weights on the test set."""
        starts = range(0, self.test_examples, SCORED_TOGETHER)
        parts = self._crew.call("score", [(weights, start, start + SCORED_TOGETHER) for start in starts])
        return task_named(self.plan.task).told(combined(parts))


def _told(outcome: Outcome, *, private: bool) -> dict[str, Any]:
    """Sum up what clients report; under differential privacy they report no losses and no counts of examples."""
    reports = outcome.reports
    figures: dict[str, Any] = {"clients": len(reports)}
    if not private:
        examples = sum(report.examples for report in reports)
        loss = sum(report.loss * report.examples for report in reports) / max(examples, 1)
        figures |= {"loss": round(loss, 6), "examples": examples}
    held_back = sum(report.held_back for report in reports)
    if held_back:
        figures["accuracy_personal"] = round(sum(report.right_personal for report in reports) / held_back, 6)
    return figures | late.mean(outcome.staleness)

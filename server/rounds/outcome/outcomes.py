"""Aggregate: what a round, or an iteration of it, makes of the reports that were accepted.

The arithmetic takes plain values, so that a simulated fleet goes through the same lines; `aggregate` takes them from
what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.bundle.names import SAID
from edge_client.estimators.registry import kind_of
from edge_client.gradient.drawing import Draw, step_directions
from edge_client.training.features import Moments, moments_in
from edge_client.wire.protocol import Report, Training
from edge_client.wire.scalars import Participant, ScalarReport, StepRecord, as_published, decode_report
from server.jobs.job import Job
from server.jobs.settings import JobSettings
from server.means.memory import heard
from server.means.registry import MEANS, PLAIN
from server.means.rule import Numbers, Rule
from server.means.scalars import shortened_reports
from server.means.units import WEIGHT_BOUND, against_in_words, combined, in_words
from server.privacy.budget import mechanism_of, wanted_in
from server.privacy.noise import Noise
from server.rounds.outcome import features
from server.rounds.outcome.aggregation import Holder, Mean, bounded, bounded_scalars, mean_steps, weights_of
from server.rounds.outcome.counts import scalars_held_to
from server.rounds.outcome.late import aged
from server.rounds.outcome.leanings import Leanings
from server.rounds.outcome.moments import believed, change_in, usual_change
from server.rounds.outcome.outliers import HEAD_NORM, Norms, beyond, sizes, usual, usual_in, usual_sizes
from server.rounds.outcome.voices import compared_heads, is_whole_head, voices
from server.storage.files.models import Model, moved, repeated
from server.storage.schema.rows import Part, Reported, Round
from server.storage.store import Store

_EARLIER_STEPS = 8
"""Whose reports those of a step are compared with."""


@dataclass(frozen=True)
class Contribution:
    """One client's weights after its part of a round."""

    part: str
    units: tuple[int, ...]
    training: Training
    """How it trained."""
    norms: Norms
    report: Report
    tensors: Callable[[], Mapping[str, Any]]
    """Read when it is their turn."""
    staleness: int | None = None
    """How many versions ago it began, in a job whose rounds take what comes."""
    device: str = ""
    """Whose it is, by its id."""


@dataclass(frozen=True)
class Outcome:
    """The next weights, and what is known of how they came about."""

    model: Model
    change: Weights
    reports: list[Report]
    record: StepRecord | None = None
    refused: tuple[tuple[str, str], ...] = ()
    """Parts whose reports turned out to be outliers, and why."""
    odd: tuple[tuple[str, str], ...] = ()
    """Parts whose reports count, by a mean that they cannot move far, and what is far from the others' in them."""

    staleness: tuple[int, ...] = ()
    """Of each report that counts, in a job whose rounds take what comes."""
    summed: tuple[str, ...] = ()
    """Parts whose updates were added in secret."""
    lengths: Norms = field(default_factory=dict[str, float])
    """How far their mean goes."""

    @property
    def is_finite(self) -> bool:
        """Whether its weights, and what the next step starts from, are all numbers."""
        return all(np.isfinite(value).all() for value in self.model.repeatable.values())


def aggregate(store: Store, job: Job, round_: Round, reported: Sequence[Reported]) -> Outcome:
    """The updates of a round, or the scalars of its open iteration."""
    manifest, settings = store.bundles.manifest(job.bundle), job.settings
    if settings.training.mode == "epoch":
        start = store.models.load(job, round_.version)
        updates = [_contribution(store, job, one.part, start) for one in reported]
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at before it is published
            return mean_of_updates(start, updates, settings, manifest, usual_in(store.database, job.id, round_.number))
    start = store.models.load(job, job.version)
    clients = [
        Participant(
            one.part.seed,
            one.part.units,
            scalars_held_to(decode_report(one.scalars, manifest, settings.training), one.part.declared),
        )
        for one in reported
    ]
    known = usual_sizes(clients, _earlier(store, job))
    why = [beyond(sizes(client), known, settings.norm_bound) for client in clients]
    taken = [client for client, refused in zip(clients, why, strict=True) if refused is None]
    refused = tuple((one.part.id, reason) for one, reason in zip(reported, why, strict=True) if reason is not None)
    with np.errstate(over="ignore", invalid="ignore"):
        outcome = step_of_scalars(start, round_.number, round_.iteration, taken, settings, manifest)
    of_seed = {one.part.seed: one.part.id for one in reported}
    odd = tuple((of_seed[int(seed)], words) for seed, words in outcome.odd)
    return replace(outcome, refused=refused, odd=odd)


def _earlier(store: Store, job: Job) -> list[Participant]:
    """Who reported in the last steps, and what."""
    records = store.models.records(job, max(0, job.version - _EARLIER_STEPS))
    return [client for record in records for client in record.participants]


def _contribution(store: Store, job: Job, part: Part, start: Model) -> Contribution:
    sent = part.sent
    assert sent is not None  # it was accepted
    update = Contribution(
        part=part.id,
        units=part.units,
        training=part.training(job.settings.training),
        norms=sent.norms,
        report=sent.report,
        tensors=partial(store.blobs.tensors, sent.sha256),
        device=part.device,
    )
    return update if part.base is None else late_one(update, part.base, start, partial(store.models.load, job))


def late_one(update: Contribution, base: int, start: Model, load: Callable[[int], Model]) -> Contribution:
    """An update as it counts for the weights at the start, whatever version of them it began with."""
    staleness = start.version - base
    if not staleness:
        return replace(update, staleness=0)

    def tensors() -> Mapping[str, Any]:
        return aged(update.tensors(), load(base).weights, start.weights, staleness)

    return replace(update, tensors=tensors, staleness=staleness)


def mean_of_updates(
    start: Model,
    updates: Sequence[Contribution],
    settings: JobSettings,
    manifest: Manifest,
    known: Norms,
    noise: Noise | None = None,
) -> Outcome:
    """By the job's mean; those that go far beyond what is usual are left out. Noise is drawn where none is given."""
    if settings.is_private:
        return _private(start, updates, settings, manifest, noise or Noise())
    refused: list[tuple[str, str]] = []
    taken: list[Contribution] = []
    for update in updates:
        if why := beyond(update.norms, known, settings.norm_bound):
            refused.append((update.part, why))
        else:
            taken.append(update)
    reports = [update.report for update in taken]
    holders = [Holder(_clarity(update, manifest), update.report.examples) for update in taken]
    come = (_robust if settings.is_robust else _plain)(start, taken, holders, settings, manifest)
    start, change = _by_features(come, settings, manifest)
    staleness = tuple(update.staleness for update in taken if update.staleness is not None)
    return Outcome(
        moved(start, change, settings, manifest, come.errors),
        change,
        reports,
        refused=tuple(refused),
        odd=come.odd,
        staleness=staleness,
    )


class _Come(NamedTuple):
    """What updates come to."""

    start: Model
    """With what is to be known in the next round."""
    change: Weights
    errors: Weights
    """The change's standard errors."""
    told: list[Moments]
    """The feature moments that are believed."""
    counted: Sequence[Contribution]
    """The updates that count."""
    odd: tuple[tuple[str, str], ...] = ()


def _plain(
    start: Model, taken: Sequence[Contribution], holders: Sequence[Holder], settings: JobSettings, manifest: Manifest
) -> _Come:
    """One update at a time."""
    lengths = usual([update.norms for update in taken], fewest=1)
    mean, told, leanings = Mean(start.weights), list[Moments](), Leanings(start, settings, manifest, lengths)
    for update, weights in zip(taken, weights_of(holders, settings.weight_bound, manifest), strict=True):
        tensors = update.tensors()
        mean.add(leanings.without_leaning(tensors, weights, update.norms), weights)
        told.append(moments_in(tensors, update.report.measured))
    changes, spec = mean.changes(), manifest.features
    if spec is not None and taken:
        told = believed(start.optimizer, told, change_in(changes, spec))
    start = replace(start, optimizer=start.optimizer | leanings.state())
    return _Come(start, changes, mean.errors(), told, taken)


def _robust(
    start: Model, taken: Sequence[Contribution], holders: Sequence[Holder], settings: JobSettings, manifest: Manifest
) -> _Come:
    """All updates at once."""
    rule = MEANS.find(settings.aggregation)
    tensors = [update.tensors() for update in taken]
    told = [moments_in(own, update.report.measured) for own, update in zip(tensors, taken, strict=True)]
    moments = features.joined(start.optimizer, _believed(start, told, tensors, manifest))
    moments = moments if settings.measures(manifest) else {}
    heads = compared_heads(start.weights, moments, tensors, manifest)
    start, away = _heard(rule, start, taken, tensors, moments, heads, manifest)
    inside = [place for place in range(len(taken)) if place not in away]
    weights = weights_of([holders[place] for place in inside], min(settings.weight_bound, WEIGHT_BOUND), manifest)
    kept = [tensors[place] for place in inside]
    compared = heads[inside] if heads is not None and is_whole_head(manifest) else None
    mean = combined(rule, start.weights, start.optimizer, kept, weights, manifest, compared)
    words = {inside[holder]: in_words(parts) for holder, parts in mean.odd.items()}
    words |= {place: against_in_words(cosine) for place, cosine in away.items()}
    odd = tuple((taken[place].part, why) for place, why in sorted(words.items()))
    found = _believed(start, [told[place] for place in inside], kept, manifest)
    start = replace(start, optimizer=start.optimizer | mean.sizes)
    return _Come(start, mean.change, mean.errors, found, [taken[place] for place in inside], odd)


def _believed(
    start: Model, told: Sequence[Moments], updates: Sequence[Mapping[str, Any]], manifest: Manifest
) -> list[Moments]:
    """The moments beside updates that are joined."""
    if manifest.features is None or not updates:
        return []
    return believed(start.optimizer, told, usual_change(updates, start.weights, manifest.features))


def _heard(
    rule: Rule,
    start: Model,
    taken: Sequence[Contribution],
    tensors: Sequence[Mapping[str, Any]],
    moments: Weights,
    heads: Numbers | None,
    manifest: Manifest,
) -> tuple[Model, Mapping[int, float]]:
    """Who is left out of a rule that judges devices, and the model with what is known of them."""
    if rule.judge is None or not taken:
        return start, {}
    said = voices(start.weights, moments, tensors, manifest, heads)
    judged = heard(rule.judge, start.optimizer, start.version, [update.device for update in taken], said)
    state = {name: value for name, value in start.optimizer.items() if not name.startswith(SAID)}
    return replace(start, optimizer=state | judged.state), judged.away


def _private(
    start: Model, updates: Sequence[Contribution], settings: JobSettings, manifest: Manifest, noise: Noise
) -> Outcome:
    """All of them, one at a time: who is left out must not depend on what others sent, and the clip holds liars too."""
    each = (update.tensors() for update in updates)
    wanted = wanted_in(settings, manifest)
    change, state = mechanism_of(settings).mean(start.weights, start.optimizer, each, wanted, noise)
    start = replace(start, optimizer=state)
    return Outcome(moved(start, change, settings, manifest), change, [update.report for update in updates])


def _clarity(update: Contribution, manifest: Manifest) -> dict[int, float]:
    return kind_of(update.training).clarity(manifest, update.training, update.units)


def _by_features(come: _Come, settings: JobSettings, manifest: Manifest) -> tuple[Model, Weights]:
    """The change with the head's as features have it, and the model with what devices told of them."""
    spec, start, reports = manifest.features, come.start, [update.report for update in come.counted]
    if spec is None or not settings.measures(manifest) or not reports:
        return start, come.change
    state = start.optimizer | features.joined(start.optimizer, come.told)
    bound = min(settings.weight_bound, WEIGHT_BOUND) if settings.is_robust else settings.weight_bound
    lengths = [update.norms.get(HEAD_NORM, 0.0) for update in come.counted]
    rows = sum(bounded([report.examples for report in reports], bound)) if manifest.model.labels else 0
    taken = features.LocalSteps(settings.training, mean_steps(reports, lengths, bound), round(rows))
    if taken.rows and not start.version:
        state |= features.shares_of(come.change, spec, taken)
    return replace(start, optimizer=state), features.stepped(come.change, state, spec, taken)


def step_of_scalars(
    start: Model,
    number: int,
    iteration: int,
    clients: Sequence[Participant],
    settings: JobSettings,
    manifest: Manifest,
    draw: Draw = step_directions,
) -> Outcome:
    """All clients' numbers as one record, and the step that everybody repeats from it."""
    reports = [Report(client.report.examples, steps=1, loss=client.report.loss) for client in clients]
    clients = bounded_scalars(clients, settings.weight_bound)
    odd: tuple[tuple[str, str], ...] = ()
    if settings.aggregation != PLAIN:
        clients, odd = shortened_reports(MEANS.find(settings.aggregation), clients)
    published = tuple(replace(client, report=as_published(client.report)) for client in clients)
    sent = [client.report for client in clients]
    record = StepRecord(start.version + 1, number, iteration, published, _mean_head_gradient(sent))
    return Outcome(repeated(start, record, settings, manifest, draw), {}, reports, record, odd=odd)


def _mean_head_gradient(reports: list[ScalarReport]) -> Any:
    if not reports or reports[0].head_gradient is None:
        return None
    mean = Mean({"head": 0 * reports[0].head_gradient})
    for report in reports:
        assert report.head_gradient is not None
        mean.add({"head": report.head_gradient}, report.examples)
    return mean.changes()["head"]

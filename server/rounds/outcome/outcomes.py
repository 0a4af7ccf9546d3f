"""Aggregate the accepted reports of a round, or of an iteration of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from edge_client.wire.scalars import Participant, decode_report
from server.jobs.job import Job
from server.rounds.outcome.usual import usual_in
from server.storage.schema.rows import Assignment, Reported, Round
from server.storage.store import Store
from server.strategy.counts import scalars_held_to
from server.strategy.outliers import beyond, sizes, usual_sizes
from server.strategy.registry import strategy_of
from server.strategy.scalars import step_of_scalars
from server.strategy.staleness import late_one
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution, Outcome

_EARLIER_STEPS = 8
"""The number of earlier steps whose reports a step's are compared with."""


def aggregate(store: Store, job: Job, round_: Round, reported: Sequence[Reported]) -> Outcome:
    """Aggregate the updates of a round, or the scalars of its open iteration."""
    manifest, settings = store.bundles.manifest(job.bundle), job.settings
    if settings.training.mode == "epoch":
        start = store.models.load(job, round_.version)
        updates = [_contribution(store, job, one.assignment, start) for one in reported]
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at before it is published
            context = RoundContext(settings, manifest, usual_in(store.database, job.id, round_.number))
            return strategy_of(settings).aggregate(start, updates, context)
    start = store.models.load(job, job.version)
    clients = [
        Participant(
            one.assignment.seed,
            one.assignment.units,
            scalars_held_to(decode_report(one.scalars, manifest, settings.training), one.assignment.declared),
        )
        for one in reported
    ]
    known = usual_sizes(clients, _earlier(store, job))
    why = [beyond(sizes(client), known, settings.norm_bound) for client in clients]
    taken = [client for client, refused in zip(clients, why, strict=True) if refused is None]
    refused = tuple(
        (one.assignment.id, reason) for one, reason in zip(reported, why, strict=True) if reason is not None
    )
    with np.errstate(over="ignore", invalid="ignore"):
        outcome = step_of_scalars(start, round_.number, round_.iteration, taken, settings, manifest)
    of_seed = {one.assignment.seed: one.assignment.id for one in reported}
    odd = tuple((of_seed[int(seed)], words) for seed, words in outcome.odd)
    return replace(outcome, refused=refused, odd=odd)


def _earlier(store: Store, job: Job) -> list[Participant]:
    """Read the participants of the last steps."""
    records = store.models.records(job, max(0, job.version - _EARLIER_STEPS))
    return [client for record in records for client in record.participants]


def _contribution(store: Store, job: Job, assignment: Assignment, start: ServerState) -> Contribution:
    sent = assignment.sent
    assert sent is not None  # it was accepted
    update = Contribution(
        part=assignment.id,
        units=assignment.units,
        training=assignment.training(job.settings.training),
        norms=sent.norms,
        report=sent.report,
        tensors=partial(store.blobs.tensors, sent.sha256),
        device=assignment.device,
    )
    return (
        update if assignment.base is None else late_one(update, assignment.base, start, partial(store.models.load, job))
    )

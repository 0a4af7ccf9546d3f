"""The round, from top to bottom.

    select → assign → train → collect → validate → aggregate → evaluate → publish

Devices select themselves by checking in, are assigned a slot (`server.rounds.offers`), train, and report
(`server.rounds.reports`, which validates what arrives). `advance` carries on from there whenever a round is complete or
its time is up. Every stage leaves its result in the database, so a process that is killed loses nothing: the next one,
or another worker, claims the round and goes on.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from edge_client.wire.scalars import encode_record
from server.jobs.job import RUNNING, Job
from server.rounds.evaluation import evaluate
from server.rounds.outcomes import Outcome, aggregate
from server.storage import jobs, metrics, parts, references, rounds, scalars
from server.storage.jobs import find_job
from server.storage.rows import Reported, Round, RoundState
from server.storage.store import Store

log = logging.getLogger("spry.server")

LEASE = 1800.0
"""Seconds after which a worker on another machine that began to close a round is taken for dead."""
PROCESS = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def advance(store: Store, job_id: str) -> bool:
    """Carry a job's round on as far as it can go now; whether anything moved."""
    if moved_on := _advance(store, find_job(store, job_id)):
        store.turn += 1
    return moved_on


def _advance(store: Store, job: Job) -> bool:
    with store.database.read() as connection:
        round_ = rounds.newest(connection, job.id)
    if round_ is None or round_.state in ("done", "failed"):
        return job.state == RUNNING and _open(store, job)
    if round_.state == "open" and not _is_due(store, job, round_):
        return False
    if not _claim(store, round_):
        return False
    reported = _collect(store, job, round_)
    if len(reported) < _fewest(job, round_):
        _fail(store, job, round_, f"{len(reported)} of at least {_fewest(job, round_)} clients reported in time")
        return True
    outcome = aggregate(store, job, round_, reported)
    known = _evaluate(store, job, round_, outcome)
    _publish(store, job, round_, outcome, known)
    return True


# --- opening and closing ---------------------------------------------------------------------------------------------


def _open(store: Store, job: Job) -> bool:
    """A round waits for devices; its clock starts with the first."""
    number = job.round + 1
    with store.database.write() as connection:
        moved_on = jobs.next_round(connection, job)
        if moved_on:
            rounds.add(connection, job, number, store.now())
    if moved_on:
        log.info("job %s: round %d is open", job.name, number, extra={"job": job.name, "round": number})
    return moved_on


def _is_due(store: Store, job: Job, round_: Round) -> bool:
    """Complete, or out of time."""
    if round_.deadline is not None and store.now() >= round_.deadline:
        return True
    with store.database.read() as connection:
        return _count(connection, job, round_) >= wanted(store, job, round_)


def _count(connection: Connection, job: Job, round_: Round) -> int:
    if job.settings.training.mode == "epoch":
        return parts.count_accepted(connection, round_)
    return scalars.count(connection, round_)


def wanted(store: Store, job: Job, round_: Round) -> int:
    """How many reports complete it: in later iterations, of all who reported in the one before and are still here."""
    before = store.models.records(job, job.version - 1) if round_.iteration else []
    if not before:
        return job.settings.per_round
    with store.database.read() as connection:
        here = parts.open_seeds(connection, round_)
    return max(1, sum(participant.seed in here for participant in before[0].participants))


def _fewest(job: Job, round_: Round) -> int:
    return job.settings.fewest if round_.iteration == 0 else 1


def _is_last(job: Job, round_: Round) -> bool:
    """Whether the round ends with this step."""
    return round_.iteration + 1 >= job.settings.steps


def _claim(store: Store, round_: Round) -> bool:
    """One worker closes a round; what is accepted stands from here on. A dead worker's claim passes to the next."""
    now = store.now()
    owner = round_.owner  # this process, where it failed half-way here
    take_over = owner is not None and (owner == PROCESS or _is_dead(owner))
    with store.database.write() as connection:
        return rounds.claim(connection, round_, PROCESS, now, now + LEASE, take_over=take_over)


def _is_dead(owner: str) -> bool:
    host, process, _ = owner.rsplit(":", 2)
    return host == socket.gethostname() and not os.path.exists(f"/proc/{process}")  # noqa: PTH110


# --- collect, validate -----------------------------------------------------------------------------------------------


def _collect(store: Store, job: Job, round_: Round) -> list[Reported]:
    """The accepted reports in the order of their slots: the sum does not depend on who came first."""
    with store.database.read() as connection:
        if job.settings.training.mode == "epoch":
            return parts.accepted(connection, round_)
        return scalars.reported(connection, round_)


# --- evaluate --------------------------------------------------------------------------------------------------------


def _evaluate(store: Store, job: Job, round_: Round, outcome: Outcome) -> dict[str, float]:
    """What is known of the new weights: clients' losses, their accuracy, that on held-out examples."""
    reports = outcome.reports
    examples = sum(report.examples for report in reports)
    known: dict[str, float] = {"reports": len(reports), "examples": examples}
    known["loss"] = sum(report.loss * report.examples for report in reports) / max(examples, 1)
    held_back = sum(report.held_back for report in reports)
    if held_back:
        known["accuracy_global"] = sum(report.right_global for report in reports) / held_back
        known["accuracy_personal"] = sum(report.right_personal for report in reports) / held_back
    settings = job.settings
    done = job.done + 1
    if settings.held_out and _is_last(job, round_) and (done % settings.evaluate_every == 0 or done == settings.rounds):
        known |= evaluate(store, job, outcome.model.result)
    return known


# --- publish ---------------------------------------------------------------------------------------------------------


def _publish(store: Store, job: Job, round_: Round, outcome: Outcome, known: dict[str, float]) -> None:
    """The new weights and all that is known of them become true in one transaction."""
    manifest = store.bundles.manifest(job.bundle)
    settings = job.settings
    ends = _is_last(job, round_)
    blobs = store.models.stored(outcome.model) if ends else None
    with store.database.write() as connection:
        if not rounds.is_owned(connection, round_, PROCESS):
            return
        jobs.set_version(connection, job.id, outcome.model.version)
        if outcome.record is not None:
            data = encode_record(outcome.record, manifest, settings.training)
            store.models.add_step(connection, job.id, outcome.record, data)
        if blobs is not None:
            changed = outcome.change or outcome.model.weights
            store.models.add_version(
                connection, job.id, outcome.model, blobs, changed, number=round_.number, now=store.now()
            )
            _end_round(store, connection, job, round_, outcome, known)
        else:
            rounds.next_iteration(connection, round_, store.now() + job.settings.iteration_deadline)
    store.models.remember(job.id, outcome.model)
    store.models.announce(job.id, outcome.model.version)
    if ends:
        _tell(job, round_, known)
        _clean_up(store, job, round_)


def _tell(job: Job, round_: Round, known: dict[str, float]) -> None:
    values = {name: known[name] for name in ("loss", "accuracy", "accuracy_global", "reports") if name in known}
    words = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    told = {"job": job.name, "round": round_.number, **values}
    log.info("job %s: round %d is done: %s", job.name, round_.number, words, extra=told)


def _end_round(
    store: Store, connection: Connection, job: Job, round_: Round, outcome: Outcome, known: dict[str, float]
) -> None:
    now = store.now()
    known = {**known, "seconds": now - (round_.started or now), "refused": len(outcome.refused)}
    for part, why in outcome.refused:
        parts.refuse_accepted(connection, part, why)
    _close(connection, job, round_, "done", known, now)
    metrics.add(connection, round_, known)
    done = job.done + 1
    jobs.set_done(connection, job.id, done)
    if why := _stop_reason(connection, job, done):
        jobs.end(connection, job.id, why, store.now())


def _close(
    connection: Connection, job: Job, round_: Round, state: RoundState, result: Mapping[str, Any], now: float
) -> None:
    rounds.close(connection, round_, state, result, now)
    if job.settings.training.mode == "iteration":
        parts.accept_reporters(connection, round_, now)
    parts.expire(connection, round_, reason="the round was closed without it", now=now)


def _fail(store: Store, job: Job, round_: Round, why: str) -> None:
    with store.database.write() as connection:
        if rounds.is_owned(connection, round_, PROCESS):
            _close(connection, job, round_, "failed", {"reason": why}, store.now())
            told = {"job": job.name, "round": round_.number, "reason": why}
            log.warning("job %s: round %d failed: %s", job.name, round_.number, why, extra=told)


def _stop_reason(connection: Connection, job: Job, done: int) -> str | None:
    """Why the job ends here, if it does."""
    settings = job.settings
    if done >= settings.rounds:
        return f"{done} rounds are done"
    name = "accuracy" if settings.held_out else "accuracy_global"
    known = metrics.course(connection, job.id, name)
    if settings.target and known and known[-1] >= settings.target:
        return f"the accuracy of {known[-1]:.4f} reaches the target {settings.target:g}"
    if settings.patience and len(known) > settings.patience:
        before, after = max(known[: -settings.patience]), max(known[-settings.patience :])
        if after <= before:
            return f"{settings.patience} evaluations were no better than {before:.4f}"
    return None


def _clean_up(store: Store, job: Job, round_: Round) -> None:
    """What is no longer needed; a crash in here leaves files, not faults."""
    with store.database.write() as connection:
        scalars.forget(connection, round_)
    if not job.settings.keep_updates:
        with store.database.read() as connection:
            updates = references.spare_updates(connection, round_)
        for sha in updates:
            store.blobs.forget(sha)
    if job.settings.keep is not None:
        store.models.forget(job.id, job.settings.keep)

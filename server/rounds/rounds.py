"""Run a round, from top to bottom.

    select → assign → train → collect → validate → aggregate → evaluate → publish

Devices select themselves by checking in, are assigned a slot (`server.rounds.selection.offers`), train, and report
(`server.rounds.arrivals.reports`, which validates what arrives). `advance` carries on from there whenever a round is
complete or its time is up. Every stage leaves its result in the database, so a process that is killed loses nothing:
the next one, or another worker, claims the round and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection

from edge_client.wire.scalars import encode_record
from server.aggregation.registry import PLAIN
from server.jobs.job import PAUSED, RUNNING, Job
from server.rounds import claims
from server.rounds.claims import Claim
from server.rounds.outcome import late
from server.rounds.outcome.evaluation import evaluate, task_of
from server.rounds.outcome.outcomes import aggregate
from server.rounds.secrecy import summing, totals
from server.rounds.secrecy.privacy import FLEET_SECONDS, spend, why_spent
from server.rounds.selection.fleet import all_have_reported, present
from server.secagg.opening import Unopened
from server.storage import jobs
from server.storage.files import references
from server.storage.identities import devices, refusals
from server.storage.jobs import find_job
from server.storage.schema.rows import Reported, Round, RoundState
from server.storage.store import Store
from server.storage.work import assignments, metrics, rounds, scalars, sums
from server.strategy.evaluations import as_reported, unlearned_in
from server.strategy.updates import Outcome

log = logging.getLogger("spry.server")

_JUDGES = 3
"""The fewest devices whose accuracies can end a job; all, where there are fewer."""


def advance(store: Store, job_id: str) -> bool:
    """Advance a job's round as far as possible now; return whether anything moved."""
    if moved_on := _advance(store, find_job(store, job_id)):
        store.turn += 1
    return moved_on


def _advance(store: Store, job: Job) -> bool:
    with store.database.read() as connection:
        round_ = rounds.newest(connection, job.id)
    in_time: bool | None = None
    if round_ is None or round_.state in ("done", "failed"):
        goes_on = job.state == RUNNING or (job.settings.is_buffered and job.state == PAUSED)
        return goes_on and _open(store, job)
    if round_.state == "open" and job.settings.is_buffered:
        late.give_up_overdue(store, job)
    if round_.state == "open" and job.settings.secure_aggregation:
        complete, fewest = partial(_in_time, store, job, round_), partial(_fewest, store, job)
        moved_on = summing.carry_on(store, job, round_, complete, fewest)
        if moved_on is not None:
            return moved_on
    elif round_.state == "open" and (in_time := _in_time(store, job, round_)) is None:
        return False
    claim = claims.claim(store, round_, in_time=in_time)
    if claim is None:
        return False
    with claim:  # from here on nobody else moves the job on: what was read of it before may be a round old
        _finish(store, find_job(store, job.id), claim.round, claim)
    return True


def _finish(store: Store, job: Job, round_: Round, claim: Claim) -> None:
    if job.settings.secure_aggregation:
        _finish_sum(store, job, round_, claim)
        return
    reported = _collect(store, job, round_)
    if (fewest := _fewest(store, job, round_, len(reported))) > len(reported):
        _fail(store, job, round_, claim, f"{len(reported)} of at least {fewest} clients reported in time")
        return
    outcome = aggregate(store, job, round_, reported)
    if why := _unfit(outcome, len(reported)):
        _fail(store, job, round_, claim, why)
        return
    known = _evaluate(store, job, round_, outcome)
    _publish(store, job, round_, claim, outcome, known)


def _finish_sum(store: Store, job: Job, round_: Round, claim: Claim) -> None:
    """Close a round of secure aggregation."""
    try:
        outcome, beside = totals.outcome_of(store, job, round_)
    except Unopened as error:
        _fail(store, job, round_, claim, str(error))
    else:
        if why := _unfit(outcome, 1):
            _fail(store, job, round_, claim, why)
            return
        _publish(store, job, round_, claim, outcome, _evaluate(store, job, round_, outcome) | beside)
    summing.clean_up(store, round_)


# --- opening and closing ---------------------------------------------------------------------------------------------


def _open(store: Store, job: Job) -> bool:
    """Open a round, which waits for devices; its clock starts with the first."""
    number = job.round + 1
    with store.database.write() as connection:
        moved_on = jobs.next_round(connection, job)
        if moved_on:
            rounds.add(connection, job, number, store.now())
            late.carry_over(connection, job, number, store.now())
    if moved_on:
        log.info("job %s: round %d is open", job.name, number, extra={"job": job.name, "round": number})
    return moved_on


def _in_time(store: Store, job: Job, round_: Round) -> bool | None:
    """Tell whether a round is complete, or has nobody to wait for (True), or its time is up (False).

    None: it takes more. A buffered one never ends without enough updates.
    """
    with store.database.read() as connection:
        count = _count(connection, job, round_)
    if count >= wanted(store, job, round_):
        return True
    enough = round_.iteration == 0 and count >= (job.settings.minimum or 1)
    if round_.deadline is not None and store.now() >= round_.deadline:
        return None if job.settings.is_buffered and not enough else False
    return True if enough and all_have_reported(store, job, round_, count) else None


def _count(connection: Connection, job: Job, round_: Round) -> int:
    if job.settings.secure_aggregation:
        return sums.count(connection, round_)
    if job.settings.training.mode == "epoch":
        return assignments.count_accepted(connection, round_)
    return scalars.count(connection, round_)


def wanted(store: Store, job: Job, round_: Round) -> int:
    """Count the reports that complete it: in later iterations, of all who reported in the one before and are here."""
    before = store.models.records(job, job.version - 1) if round_.iteration else []
    if not before:
        return job.settings.complete
    with store.database.read() as connection:
        here = assignments.open_seeds(connection, round_)
    return max(1, sum(participant.seed in here for participant in before[0].participants))


def _fewest(store: Store, job: Job, round_: Round, reported: int) -> int:
    """Count the reports without which the round fails: of half of the devices where it wants more than there are."""
    settings = job.settings
    if round_.iteration > 0 or settings.is_buffered:
        return 1
    if settings.minimum is not None or reported >= settings.fewest:
        return settings.fewest
    return min(settings.fewest, max(1, (present(store, job, round_, 2 * settings.fewest) + 1) // 2))


def _unfit(outcome: Outcome, reported: int) -> str | None:
    """Say why weights must not be published; None if they may."""
    if not outcome.reports:
        return f"all {reported} reports go too far to be averaged: lower the learning rate"
    if not outcome.is_finite:
        return "its weights would not be finite: lower the learning rate"
    return None


def _is_last(job: Job, round_: Round) -> bool:
    """Tell whether the round ends with this step."""
    return round_.iteration + 1 >= job.settings.steps


# --- collect, validate -----------------------------------------------------------------------------------------------


def _collect(store: Store, job: Job, round_: Round) -> list[Reported]:
    """Return the accepted reports in the order of their slots: the sum does not depend on who came first."""
    with store.database.read() as connection:
        if job.settings.training.mode == "epoch":
            return assignments.accepted(connection, round_)
        return scalars.reported(connection, round_)


# --- evaluate --------------------------------------------------------------------------------------------------------


def _evaluate(store: Store, job: Job, round_: Round, outcome: Outcome) -> dict[str, float]:
    """Measure the new weights: clients' losses, their accuracy, that on held-out examples."""
    reports = outcome.reports
    settings = job.settings
    known: dict[str, float] = {"reports": len(reports)}
    if not settings.is_private:
        bases = [round_.version - age for age in outcome.staleness] or [round_.version] * len(reports)
        unlearned = unlearned_in(store.bundles.manifest(job.bundle), bases)
        known |= as_reported(reports, settings, task_of(store, job), unlearned)
    done = job.done + 1
    if settings.held_out and _is_last(job, round_) and (done % settings.evaluate_every == 0 or done == settings.rounds):
        known |= evaluate(store, job, outcome.model.result, done=done)
    return known


# --- publish ---------------------------------------------------------------------------------------------------------


def _publish(store: Store, job: Job, round_: Round, claim: Claim, outcome: Outcome, known: dict[str, float]) -> None:
    """Publish the new weights and all metrics in one transaction."""
    manifest = store.bundles.manifest(job.bundle)
    settings = job.settings
    ends, version = _is_last(job, round_), outcome.model.version
    blobs = store.models.stored(outcome.model) if ends else None
    with store.database.write() as connection:
        if not claim.holds(connection):
            return
        jobs.set_version(connection, job.id, outcome.model.version)
        for part, why in outcome.refused:
            _note(connection, part, why, store.now())
        sums.accept(connection, outcome.summed, outcome.lengths, store.now())
        odd = _named(connection, outcome)
        if outcome.record is not None:
            data = encode_record(outcome.record, manifest, settings.training)
            store.models.add_step(connection, job.id, outcome.record, data)
        if blobs is not None:
            changed = outcome.change or outcome.model.weights
            store.models.add_version(connection, job.id, version, blobs, changed, number=round_.number, now=store.now())
            if settings.is_private:
                known = known | spend(connection, job, round_)
            version = _end_round(store, connection, job, round_, outcome, known, odd)
        else:
            rounds.next_iteration(connection, round_, store.now() + job.settings.iteration_deadline)
    store.models.remember(job.id, outcome.model)
    store.models.announce(job.id, version)
    _warn(job, round_, odd)
    if ends:
        _tell(job, round_, known, task_of(store, job).main_score)
        _clean_up(store, job, round_)


def _note(connection: Connection, part: str, why: str, now: float) -> None:
    refused = assignments.find(connection, part)
    assert refused is not None  # its report is here
    refusals.add(connection, refused, refused.device, "norm", why, now)


def _named(connection: Connection, outcome: Outcome) -> list[dict[str, str]]:
    """Name the devices whose reports are far from the others'."""
    named: list[dict[str, str]] = []
    for one, why in outcome.odd:
        assignment = assignments.find(connection, one)
        device = None if assignment is None else devices.find(connection, assignment.device)
        if device is not None:
            named.append({"device": device.id, "name": device.name, "why": why})
    return named


def _warn(job: Job, round_: Round, odd: Sequence[Mapping[str, str]]) -> None:
    for one in odd:
        told = {"job": job.name, "round": round_.number, "device": one["device"], "reason": one["why"]}
        words = job.name, round_.number, one["device"], one["name"], one["why"]
        log.warning("job %s: round %d: an outlier, %s (%s): %s", *words, extra=told)


def _tell(job: Job, round_: Round, known: dict[str, float], score: str) -> None:
    names = "loss", score, f"{score}_global", f"{score}_personal", "perplexity", "perplexity_global", "reports"
    values = {name: known[name] for name in names if name in known}
    words = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    told = {"job": job.name, "round": round_.number, **values}
    log.info("job %s: round %d is done: %s", job.name, round_.number, words, extra=told)


def _end_round(
    store: Store,
    connection: Connection,
    job: Job,
    round_: Round,
    outcome: Outcome,
    known: dict[str, float],
    odd: Sequence[Mapping[str, str]],
) -> int:
    """Close a round that moved the weights, and the job where this was its last; gives the newest version."""
    now = store.now()
    counted = {} if job.settings.aggregation == PLAIN else {"outliers": len({one["device"] for one in odd})}
    counted |= late.mean(outcome.staleness)
    known = {**known, **counted, "seconds": now - (round_.started or now), "refused": len(outcome.refused)}
    for part, why in outcome.refused:
        assignments.refuse_accepted(connection, part, why)
    judged = metrics.of_round(
        connection, job.id, round_.number
    )  # by devices of mode iteration that were done before the server
    told: dict[str, Any] = {"outlying": list(odd)} if odd else {}
    _close(connection, job, round_, "done", {**judged, **known, **told, **late.counts(outcome.staleness)}, now)
    metrics.add(connection, round_, known)
    done = job.done + 1
    jobs.set_done(connection, job.id, done)
    score, version = task_of(store, job).main_score, outcome.model.version
    if why := stop_reason(connection, job, score, done, now):
        best = metrics.best_round(connection, job.id, score)
        waited = bool(job.settings.patience and job.settings.held_out)
        if waited and best and store.models.restore(connection, job.id, best, version + 1, now):
            version += 1
            jobs.set_version(connection, job.id, version)
            why = f"{why}; its result is round {best}'s, the best"
        jobs.end(connection, job.id, why, store.now())
    return version


def _close(
    connection: Connection, job: Job, round_: Round, state: RoundState, result: Mapping[str, Any], now: float
) -> None:
    rounds.close(connection, round_, state, result, now)
    if job.settings.training.mode == "iteration":
        assignments.accept_reporters(connection, round_, now)
    if not job.settings.is_buffered:
        assignments.leave(connection, round_, now)


def _fail(store: Store, job: Job, round_: Round, claim: Claim, why: str) -> None:
    with store.database.write() as connection:
        if claim.holds(connection):
            _close(connection, job, round_, "failed", {"reason": why}, store.now())
            is_paid = job.settings.is_private and job.settings.secure_aggregation  # whatever came of it
            if is_paid and (spent := why_spent(connection, job, store.now())):
                jobs.end(connection, job.id, spent, store.now())
            told = {"job": job.name, "round": round_.number, "reason": why}
            log.warning("job %s: round %d failed: %s", job.name, round_.number, why, extra=told)


def stop_reason(connection: Connection, job: Job, score: str, done: int, now: float) -> str | None:
    """Say why the job ends, if it does; devices' evaluations count where several report, or all of a small fleet."""
    settings = job.settings
    if done >= settings.rounds:
        return f"{done} rounds are done"
    if settings.is_private and (spent := why_spent(connection, job, now)):
        return spent
    if settings.held_out:
        known = metrics.course(connection, job.id, score)
    else:
        enough = min(_JUDGES, devices.count_heard(connection, now - FLEET_SECONDS))
        known = metrics.course(connection, job.id, f"{score}_global", among=("evaluated", enough))
    if settings.target and known and known[-1] >= settings.target:
        return f"the {score.replace('_', ' ')} of {known[-1]:.4f} reaches the target {settings.target:g}"
    if settings.patience and len(known) > settings.patience:
        before, after = max(known[: -settings.patience]), max(known[-settings.patience :])
        if after <= before:
            return f"{settings.patience} evaluations were no better than {before:.4f}"
    return None


def _clean_up(store: Store, job: Job, round_: Round) -> None:
    """Remove what is no longer needed; a crash in here leaves files, not faults."""
    with store.database.write() as connection:
        scalars.forget(connection, round_)
    if not job.settings.keep_updates:
        with store.database.read() as connection:
            updates = references.spare_updates(connection, round_)
        for sha in updates:
            store.blobs.forget(sha)
    if job.settings.keep is not None:
        store.models.forget(job.id, job.settings.keep)

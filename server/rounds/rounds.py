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
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from edge_client.wire.scalars import decode_records, encode_record
from server.jobs.jobs import RUNNING, Job, end_job, find_job
from server.rounds.evaluation import evaluate
from server.rounds.outcomes import Outcome, aggregate
from server.storage.store import Store
from server.storage.tables import jobs, metrics, rounds, scalars, tasks

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
    round_ = _newest(store, job)
    if round_ is None or round_.state in ("done", "failed"):
        return job.state == RUNNING and _open(store, job)
    if round_.state == "open" and not _is_due(store, job, round_):
        return False
    if not _claim(store, job, round_):
        return False
    reported = _collect(store, job, round_)
    if len(reported) < _fewest(job, round_):
        _fail(store, job, round_, f"{len(reported)} of at least {_fewest(job, round_)} clients reported in time")
        return True
    outcome = aggregate(store, job, round_, reported)
    found = _evaluate(store, job, round_, outcome)
    _publish(store, job, round_, outcome, found)
    return True


# --- opening and closing ---------------------------------------------------------------------------------------------


def _newest(store: Store, job: Job) -> Row[Any] | None:
    with store.database.read() as connection:
        query = select(rounds).where(rounds.c.job == job.id).order_by(rounds.c.number.desc()).limit(1)
        return connection.execute(query).one_or_none()


def _open(store: Store, job: Job) -> bool:
    """A round waits for devices; its clock starts with the first."""
    with store.database.write() as connection:
        moved_on = connection.execute(
            update(jobs)
            .where(jobs.c.id == job.id, jobs.c.round == job.round, jobs.c.state == RUNNING)
            .values(round=job.round + 1)
        ).rowcount
        if moved_on:
            connection.execute(
                insert(rounds).values(
                    job=job.id, number=job.round + 1, state="open", version=job.version, opened=store.now(), iteration=0
                )
            )
    if moved_on:
        number = job.round + 1
        log.info("job %s: round %d is open", job.name, number, extra={"job": job.name, "round": number})
    return bool(moved_on)


def _is_due(store: Store, job: Job, round_: Row[Any]) -> bool:
    """Complete, or out of time."""
    if round_.deadline is not None and store.now() >= round_.deadline:
        return True
    with store.database.read() as connection:
        return _count(connection, job, round_) >= _wanted(store, job, round_)


def _count(connection: Connection, job: Job, round_: Row[Any]) -> int:
    if job.settings.training.mode == "epoch":
        query = select(func.count()).where(
            tasks.c.job == job.id, tasks.c.round == round_.number, tasks.c.state == "accepted"
        )
    else:
        query = select(func.count()).where(
            scalars.c.job == job.id, scalars.c.round == round_.number, scalars.c.iteration == round_.iteration
        )
    return connection.scalar(query) or 0


def _wanted(store: Store, job: Job, round_: Row[Any]) -> int:
    """How many reports complete it: in later iterations, those of all who reported in the one before."""
    if round_.iteration == 0:
        return job.settings.per_round
    record = next(decode_records(store.models.record_bytes(job, job.version - 1)[0]))
    return len(record.participants)


def _fewest(job: Job, round_: Row[Any]) -> int:
    return job.settings.fewest if round_.iteration == 0 else 1


def _is_last(job: Job, round_: Row[Any]) -> bool:
    """Whether the round ends with this step."""
    return round_.iteration + 1 >= job.settings.steps


def _claim(store: Store, job: Job, round_: Row[Any]) -> bool:
    """One worker closes a round; what is accepted stands from here on. A dead worker's claim passes to the next."""
    now = store.now()
    free = [rounds.c.state == "open", rounds.c.lease < now]
    if round_.owner and round_.owner != PROCESS and _is_dead(round_.owner):
        free.append(rounds.c.owner == round_.owner)
    if round_.owner == PROCESS:
        free.append(rounds.c.owner == PROCESS)  # it failed half-way here, in this process
    with store.database.write() as connection:
        return bool(
            connection.execute(
                update(rounds)
                .where(
                    rounds.c.job == job.id,
                    rounds.c.number == round_.number,
                    rounds.c.iteration == round_.iteration,
                    rounds.c.state.in_(("open", "closing")),
                    or_(*free),
                )
                .values(state="closing", owner=PROCESS, lease=now + LEASE)
            ).rowcount
        )


def _is_dead(owner: str) -> bool:
    host, process, _ = owner.rsplit(":", 2)
    return host == socket.gethostname() and not os.path.exists(f"/proc/{process}")  # noqa: PTH110


# --- collect, validate -----------------------------------------------------------------------------------------------


def _collect(store: Store, job: Job, round_: Row[Any]) -> list[Row[Any]]:
    """The accepted reports in the order of their slots: the sum does not depend on who came first."""
    of_round = tasks.c.job == job.id, tasks.c.round == round_.number
    if job.settings.training.mode == "epoch":
        query = select(tasks).where(*of_round, tasks.c.state == "accepted")
    else:
        joined = and_(scalars.c.task == tasks.c.id, scalars.c.iteration == round_.iteration)
        query = select(tasks, scalars.c.report.label("data")).join(scalars, joined).where(*of_round)
    with store.database.read() as connection:
        return list(connection.execute(query.order_by(tasks.c.slot, tasks.c.id)))


# --- evaluate --------------------------------------------------------------------------------------------------------


def _evaluate(store: Store, job: Job, round_: Row[Any], outcome: Outcome) -> dict[str, float]:
    """What is known of the new weights: clients' losses, their accuracy, that on held-out examples."""
    examples = sum(report["examples"] for report in outcome.reports)
    found: dict[str, float] = {"reports": len(outcome.reports), "examples": examples}
    found["loss"] = sum(report["loss"] * report["examples"] for report in outcome.reports) / max(examples, 1)
    held_back = sum(report.get("held_back", 0) for report in outcome.reports)
    if held_back:
        for kind in ("global", "personal"):
            found[f"accuracy_{kind}"] = sum(report[f"right_{kind}"] for report in outcome.reports) / held_back
    settings = job.settings
    done = job.done + 1
    if settings.held_out and _is_last(job, round_) and (done % settings.evaluate_every == 0 or done == settings.rounds):
        found |= evaluate(store, job, outcome.model.result)
    return found


# --- publish ---------------------------------------------------------------------------------------------------------


def _publish(store: Store, job: Job, round_: Row[Any], outcome: Outcome, found: dict[str, float]) -> None:
    """The new weights and all that is known of them become true in one transaction."""
    manifest = store.bundles.manifest(job.bundle)
    settings = job.settings
    ends = _is_last(job, round_)
    blobs = store.models.stored(outcome.model) if ends else None
    with store.database.write() as connection:
        if not _still_mine(connection, job, round_):
            return
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(version=outcome.model.version))
        if outcome.record is not None:
            data = encode_record(outcome.record, manifest, settings.training)
            store.models.add_step(connection, job.id, outcome.record, data)
        if blobs is not None:
            changed = outcome.change or outcome.model.weights
            store.models.add_version(
                connection, job.id, outcome.model, blobs, changed, number=round_.number, now=store.now()
            )
            _end_round(store, connection, job, round_, outcome, found)
        else:
            _next_iteration(store, connection, job, round_)
    store.models.remember(job.id, outcome.model)
    store.models.announce(job.id, outcome.model.version)
    if ends:
        _tell(job, round_, found)
        _clean_up(store, job, round_)


def _tell(job: Job, round_: Row[Any], found: dict[str, float]) -> None:
    known = {name: found[name] for name in ("loss", "accuracy", "accuracy_global", "reports") if name in found}
    values = ", ".join(f"{name} {value:.4g}" for name, value in known.items())
    told = {"job": job.name, "round": round_.number, **known}
    log.info("job %s: round %d is done: %s", job.name, round_.number, values, extra=told)


def _still_mine(connection: Connection, job: Job, round_: Row[Any]) -> bool:
    query = select(rounds.c.owner).where(
        rounds.c.job == job.id,
        rounds.c.number == round_.number,
        rounds.c.iteration == round_.iteration,
        rounds.c.state == "closing",
    )
    return connection.scalar(query.with_for_update()) == PROCESS


def _next_iteration(store: Store, connection: Connection, job: Job, round_: Row[Any]) -> None:
    connection.execute(
        update(rounds)
        .where(rounds.c.job == job.id, rounds.c.number == round_.number)
        .values(
            state="open",
            owner=None,
            lease=None,
            iteration=round_.iteration + 1,
            deadline=store.now() + job.settings.iteration_deadline,
        )
    )


def _end_round(
    store: Store, connection: Connection, job: Job, round_: Row[Any], outcome: Outcome, found: dict[str, float]
) -> None:
    now = store.now()
    found = {**found, "seconds": now - (round_.started or now), "refused": len(outcome.refused)}
    for task, why in outcome.refused:
        connection.execute(update(tasks).where(tasks.c.id == task).values(state="refused", reason=why))
    _close(connection, job, round_, "done", found, now)
    for name, value in found.items():
        connection.execute(insert(metrics).values(job=job.id, round=round_.number, name=name, value=float(value)))
    done = job.done + 1
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(done=done))
    if why := _stop_reason(connection, job, done):
        end_job(store, connection, job.id, why)


def _close(connection: Connection, job: Job, round_: Row[Any], state: str, result: dict[str, Any], now: float) -> None:
    where = rounds.c.job == job.id, rounds.c.number == round_.number
    connection.execute(update(rounds).where(*where).values(state=state, closed=now, result=result, owner=None))
    of_round = tasks.c.job == job.id, tasks.c.round == round_.number, tasks.c.state == "open"
    if job.settings.training.mode == "iteration":  # whoever reported a step has done its part
        reported = select(scalars.c.task).where(scalars.c.job == job.id, scalars.c.round == round_.number)
        connection.execute(update(tasks).where(*of_round, tasks.c.id.in_(reported)).values(state="accepted", ended=now))
    connection.execute(
        update(tasks).where(*of_round).values(state="expired", ended=now, reason="the round was closed without it")
    )


def _fail(store: Store, job: Job, round_: Row[Any], why: str) -> None:
    with store.database.write() as connection:
        if _still_mine(connection, job, round_):
            _close(connection, job, round_, "failed", {"reason": why}, store.now())
            told = {"job": job.name, "round": round_.number, "reason": why}
            log.warning("job %s: round %d failed: %s", job.name, round_.number, why, extra=told)


def _stop_reason(connection: Connection, job: Job, done: int) -> str | None:
    """Why the job ends here, if it does."""
    settings = job.settings
    if done >= settings.rounds:
        return f"{done} rounds are done"
    name = "accuracy" if settings.held_out else "accuracy_global"
    query = select(metrics.c.value).where(metrics.c.job == job.id, metrics.c.name == name).order_by(metrics.c.round)
    known = list(connection.execute(query).scalars())
    if settings.target and known and known[-1] >= settings.target:
        return f"the accuracy of {known[-1]:.4f} reaches the target {settings.target:g}"
    if settings.patience and len(known) > settings.patience:
        before, after = max(known[: -settings.patience]), max(known[-settings.patience :])
        if after <= before:
            return f"{settings.patience} evaluations were no better than {before:.4f}"
    return None


def _clean_up(store: Store, job: Job, round_: Row[Any]) -> None:
    """What is no longer needed; a crash in here leaves files, not faults."""
    of_round = tasks.c.job == job.id, tasks.c.round == round_.number
    with store.database.write() as connection:
        connection.execute(delete(scalars).where(scalars.c.job == job.id, scalars.c.round == round_.number))
    if not job.settings.keep_updates:
        with store.database.read() as connection:
            updates = set(connection.execute(select(tasks.c.update).where(*of_round)).scalars()) - {None}
            waiting = and_(rounds.c.job == tasks.c.job, rounds.c.number == tasks.c.round, rounds.c.state != "done")
            needed = select(tasks.c.update).join(rounds, waiting).where(tasks.c.update.in_(updates))
            updates -= set(connection.execute(needed).scalars())
        for sha in updates:
            store.blobs.forget(sha)
    if job.settings.keep is not None:
        store.models.forget(job.id, job.settings.keep)

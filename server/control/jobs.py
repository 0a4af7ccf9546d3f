"""Create, pause, resume and stop jobs for administrators, and name bundles."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from edge_client.wire.protocol import OpenJob
from server.errors import Refusal
from server.jobs.completion import complete
from server.jobs.job import ENDED, RUNNING, Job, JobState
from server.jobs.settings import JobSettings
from server.privacy.budget import settled
from server.privacy.shares import check_rounding
from server.rounds.outcome.evaluation import check_held_out, task_of
from server.rounds.rounds import stop_reason
from server.storage import jobs
from server.storage.files import catalog
from server.storage.jobs import find_job
from server.storage.store import Store
from server.storage.work import metrics


def require_whole(store: Store, bundle: str) -> None:
    missing = store.bundles.missing(bundle)
    if missing:
        raise Refusal(409, "incomplete", f"the bundle lacks {len(missing)} files, first {missing[0]}: upload them")


def bundle_names(store: Store) -> dict[str, str]:
    """Look up the names of bundles that have one."""
    with store.database.read() as connection:
        return catalog.names(connection)


def name_bundle(store: Store, bundle: str, name: str, by: str) -> None:
    require_whole(store, bundle)
    with store.database.write() as connection:
        catalog.set_name(connection, bundle, name, store.now())
        store.audit(connection, by, "bundle-named", bundle, name)


def create_job(store: Store, name: str, bundle: str, settings: JobSettings, by: str) -> Job:
    """Start a job on a bundle that has been uploaded whole."""
    require_whole(store, bundle)
    known: dict[str, float] = {}
    if settings.held_out:
        if not store.blobs.has(settings.held_out):
            what = f"held-out examples {settings.held_out[:12]}… are not on the server"
            raise Refusal(409, "incomplete", f"{what}: PUT them first")
        known = check_held_out(store, bundle, settings.held_out, answers=bool(settings.evaluate_answers))
    settings = settled(complete(settings, store.bundles.manifest(bundle)))
    check_rounding(settings, store.bundles.manifest(bundle))
    job = Job(
        id=secrets.token_hex(4),
        name=name,
        bundle=bundle,
        settings=settings,
        state=RUNNING,
        reason="",
        version=0,
        round=0,
        done=0,
        created=store.now(),
        ended=None,
    )
    with store.database.write() as connection:
        if jobs.is_taken(connection, name):
            raise Refusal(409, "exists", f"there is a job {name!r} already; choose another name")
        jobs.add(connection, job)
        metrics.add_before(connection, job.id, known)
        store.audit(connection, by, "job-created", job.id, name)
    return find_job(store, job.id)


def asked_of_rows(store: Store) -> list[OpenJob]:
    """List what the running jobs ask of a device's rows."""
    running = [(job, store.bundles.manifest(job.bundle).model) for job in jobs.list_jobs(store, RUNNING)]
    return [OpenJob(job.id, job.name, model.task, list(model.labels)) for job, model in running]


def set_state(store: Store, name: str, state: JobState, by: str, reason: str = "") -> Job:
    """Pause, resume or stop; a stopped job does not start again."""
    job = find_job(store, name)
    with store.database.write() as connection:
        if not jobs.set_state(connection, job.id, state, reason):
            raise Refusal(409, "ended", f"job {job.name} has ended ({job.reason}); create another")
        if state == ENDED:
            jobs.end(connection, job.id, reason, store.now())
        store.audit(connection, by, f"job-{state}", job.id, reason)
    store.turn += 1
    return find_job(store, job.id)


def extend(store: Store, name: str, rounds: int, patience: int | None, by: str) -> Job:
    """Go on with a job for more rounds, also where it ended because its rounds were done or its patience was out."""
    job = find_job(store, name)
    if job.settings.is_private:
        raise Refusal(409, "invalid", "the noise of a private job was chosen for all of its rounds: create another job")
    if rounds < job.settings.rounds:
        raise Refusal(409, "invalid", f"job {job.name} has {job.settings.rounds} rounds, got {rounds}: give more")
    settings = _checked(job.settings, {"rounds": rounds, "patience": patience or job.settings.patience})
    longer, score = replace(job, settings=settings), task_of(store, job).main_score
    with store.database.write() as connection:
        if job.state == ENDED:
            before, after = (stop_reason(connection, one, score, job.done, store.now()) for one in (job, longer))
            _refuse_end(job, before, after)
        if not jobs.go_on(connection, job, settings):
            raise Refusal(409, "invalid", f"job {job.name} is no longer {job.state}: look again")
        store.audit(connection, by, "job-extended", job.id, f"{rounds} rounds")
    store.turn += 1
    return find_job(store, job.id)


def _checked(settings: JobSettings, changes: dict[str, Any]) -> JobSettings:
    """Change settings, and refuse what does not go together."""
    try:
        return JobSettings.model_validate(settings.model_dump(mode="json") | changes)
    except ValidationError as error:
        raise Refusal(422, "invalid", error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _refuse_end(job: Job, before: str | None, after: str | None) -> None:
    """Refuse to go on with what was stopped by hand, or would end at once.

    Args:
        job: that has ended.
        before: why it ends, by the settings that it has.
        after: why it would, by those that it is to have.
    """
    if before is None:
        raise Refusal(409, "ended", f"job {job.name} has ended ({job.reason}); create another")
    if after is not None:
        raise Refusal(409, "ended", f"job {job.name} would end again at once ({after}): give more rounds or patience")

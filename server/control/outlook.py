"""Estimate how much longer a job takes, and advise people where it makes no progress."""

from __future__ import annotations

import shutil
from itertools import pairwise
from statistics import median

from sqlalchemy import Connection

from edge_client.format import size
from server.control.shallow import shallow, spared
from server.jobs.job import ENDED, PAUSED, RUNNING, SET_ASIDE, Job
from server.rounds.selection import fleet
from server.storage.jobs import list_jobs
from server.storage.schema.rows import Device, Round
from server.storage.store import Store
from server.storage.work import rounds

_NEWEST = 6
"""The number of newest rounds whose times estimate the next ones."""
_STALE = 10.0
"""Times as long as a round takes, after which a job goes on no more as it did."""
_ROOM = 32_000_000
"""Bytes of disk, with less of which a round may not be kept."""
_NAMED = 3
"""Devices that are named for one reason, of all that have it."""
_JOB = "job "
"""The prefix of a job's name, which may be any word."""


def ends_about(connection: Connection, job: Job, now: float) -> float | None:
    """Estimate when its last round is done, if rounds go on as the newest did; None where too few are known."""
    closed = rounds.last_done(connection, job.id, _NEWEST)
    if job.state != RUNNING or len(closed) < 2:
        return None
    apart = median(later - earlier for later, earlier in pairwise(closed))
    if now - closed[0] > _STALE * apart:
        return None
    return closed[0] + apart * (job.settings.rounds - job.done)


def advice(store: Store, job: Job) -> list[str]:
    """Say what holds a job up, and what to do about it; nothing where it goes its way."""
    if job.state == SET_ASIDE:
        return [f"it cannot go on: {job.reason}; mend that, then resume it"]
    if job.state == PAUSED:
        return ["it is paused: no device is given a part until somebody resumes it"]
    if job.state == ENDED:
        return [] if job.version else ["it ended before anything was learned: its adapter is the exported one"]
    with store.database.read() as connection:
        newest = rounds.newest_first(connection, job.id, None, 2)
    failed = [_failed(round_) for round_ in newest if round_.state == "failed"][:1]
    waits = [round_ for round_ in newest if round_.state == "open" and not round_.iteration]
    lacks = [why for round_ in waits if (why := fleet.wants(store, job, round_)) is not None]
    short, full = shallow(store, job) + spared(store, job), _full(store)
    if not lacks:
        return full + failed + short
    idle = [_idle(why, names) for round_ in waits for why, names in fleet.idlers(store, job, round_).items()]
    return full + failed + lacks + idle + short


def _full(store: Store) -> list[str]:
    free = shutil.disk_usage(store.settings.data_dir).free
    if free >= _ROOM:
        return []
    return [f"the server has {size(free)} of disk left, so that it may keep no more rounds: free some space"]


def waits(store: Store, device: Device) -> list[str]:
    """Say why a device that is here has nothing to do, job by job; nothing if it may be given a part when it asks."""
    going = list_jobs(store, RUNNING, PAUSED)
    reasons = [why for job in going if (why := _wait(store, job, device)) is not None]
    return reasons if going else ["no job is running"]


def _wait(store: Store, job: Job, device: Device) -> str | None:
    if job.state == PAUSED:
        return f"{_JOB}{job.name} is paused"
    with store.database.read() as connection:
        newest = rounds.find_open(connection, job.id, job.round)
    if newest is None or (why := fleet.why_idle(store, job, newest, device)) is None:
        return None
    return _JOB + why if why.startswith(job.name) else f"{_JOB}{job.name}: {why}"


def _failed(round_: Round) -> str:
    reason = (round_.result or {}).get("reason", "too few reports")
    return f"round {round_.number} failed: {reason}"


def _idle(why: str, names: list[str]) -> str:
    named = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"no part for {named}{more}, which {'is' if len(names) == 1 else 'are'} here: {why}"

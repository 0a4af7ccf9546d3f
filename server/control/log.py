"""Tell a job's history in lines: people's actions, ends of rounds, refusals."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from server.jobs.job import Job
from server.rounds.outcome.late import in_words
from server.storage.identities import audit, devices, refusals
from server.storage.schema.rows import Deed, Refused, Round
from server.storage.store import Store
from server.storage.work import rounds

_DEEDS = {
    "job-created": "made the job",
    "job-paused": "paused it",
    "job-running": "resumed it",
    "job-ended": "ended it",
    "job-set-aside": "set it aside",
}
_TOLD = ("loss", "accuracy", "accuracy_global", "accuracy_personal", "f1", "exact_match", "perplexity")


class LogView(BaseModel):
    """Something that happened."""

    time: float
    kind: Literal["deed", "round", "refusal"]
    who: str
    """A person's name, "server", or a device's; empty for rounds."""
    text: str


def log_of(store: Store, job: Job, limit: int) -> list[LogView]:
    """List the lines of a job's log, the newest first."""
    with store.database.read() as connection:
        deeds = audit.of_subject(connection, job.id, limit)
        over = [one for one in rounds.newest_first(connection, job.id, None, limit) if one.closed is not None]
        refused = refusals.newest_first(connection, job.id, limit)
        names = devices.names(connection, {one.device for one in refused})
    lines = [_deed(one) for one in deeds]
    lines += [_round(one) for one in over]
    lines += [_refused(one, names) for one in refused]
    return sorted(lines, key=lambda line: -line.time)[:limit]


def _deed(deed: Deed) -> LogView:
    about = f": {deed.detail}" if deed.detail and deed.action != "job-created" else ""
    text = f"{_DEEDS.get(deed.action, deed.action)}{about}"
    return LogView(time=deed.time, kind="deed", who=deed.actor, text=text)


def _round(round_: Round) -> LogView:
    result: dict[str, Any] = round_.result or {}
    if round_.state == "failed":
        text = f"round {round_.number} failed: {result.get('reason', 'too few reports')}"
    else:
        reports = int(result.get("reports", 0))
        known = [f"{name.replace('_', ' ')} {result[name]:.4g}" for name in _TOLD if name in result]
        told = [f"{reports} report{'' if reports == 1 else 's'}", *known]
        began = in_words(result.get("stale", {}))
        text = f"round {round_.number} is done: {', '.join(told)}{f'; {began}' if began else ''}"
    return LogView(time=round_.closed or round_.opened, kind="round", who="", text=text)


def _refused(refused: Refused, names: dict[str, str]) -> LogView:
    text = f"{refused.code} in round {refused.round}: {refused.detail}"
    return LogView(time=refused.time, kind="refusal", who=names.get(refused.device, refused.device), text=text)

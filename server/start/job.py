"""The job of a project on its server: found again, or made anew when what it learns has changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edge_client.bundle.manifest import FILE_NAME
from edge_client.data.sources import open_data
from edge_client.store import files
from server.cli.connection import Administrator, RefusedByServer, part
from server.project.folder import Project

TOKEN_USES, TOKEN_DAYS = 100, 30


class NewestJob(msgspec.Struct, frozen=True):
    """The newest job."""

    name: str
    asked: str
    """A digest of the bundle, examples and settings."""
    beside_rounds: str = ""
    """The same digest without the job's length."""


class EnrolmentToken(msgspec.Struct, frozen=True):
    """An enrolment token, which the server does not show again."""

    id: str
    token: str


def ensure_job(project: Project, administrator: Administrator) -> tuple[dict[str, Any], bool]:
    """Return the job in its present state, and whether it is new."""
    from server.cli.job import create_job

    path = project.kept / "job.json"
    known, asked = files.read_json(path, NewestJob), _asked(project)
    if known is not None and known.asked == asked:
        return administrator.get(f"/v1/jobs/{part(known.name)}"), False
    jobs = {job["name"]: job for job in administrator.get("/v1/jobs")}
    beside = _asked(project, without=("rounds", "patience"))
    if known is not None and known.beside_rounds == beside and _goes_on(project, administrator, jobs.get(known.name)):
        files.write(path, msgspec.json.encode(NewestJob(known.name, asked, beside)))
        return administrator.get(f"/v1/jobs/{part(known.name)}"), False
    if known is not None and known.name in jobs and jobs[known.name]["state"] != "ended":
        administrator.post(f"/v1/jobs/{part(known.name)}/stop")  # devices cannot learn two things at a time
    wanted = project.file.job
    numbered = (wanted.name if number == 1 else f"{wanted.name}-{number}" for number in range(1, len(jobs) + 2))
    name = next(name for name in numbered if name not in jobs)
    held_out = project.path(project.file.data.held_out) if project.file.data.held_out else None
    patience = {"patience": wanted.patience} if wanted.patience and held_out else {}
    given = {"rounds": wanted.rounds, "per_round": wanted.per_round, **patience, **wanted.settings}
    create_job(administrator, name, project.bundle, given, wanted.preset or None, held_out, _rows(project))
    files.write(path, msgspec.json.encode(NewestJob(name, asked, beside)))
    return administrator.get(f"/v1/jobs/{part(name)}"), True


def _rows(project: Project) -> int | None:
    """Count the rows at hand; None where they lie elsewhere."""
    path = project.path(project.file.data.train)
    return sum(1 for _ in open_data(path).rows()) if path.is_file() else None


def _goes_on(project: Project, administrator: Administrator, job: dict[str, Any] | None) -> bool:
    """Let a job go on for more rounds, from what it has learned; False where it can not, or is to have fewer."""
    wanted = project.file.job
    if job is None or wanted.rounds < job["settings"]["rounds"]:
        return False
    patience = {"patience": wanted.patience} if wanted.patience and job["settings"]["patience"] else {}
    try:
        administrator.post(f"/v1/jobs/{part(job['name'])}/extend", {"rounds": wanted.rounds, **patience})
    except RefusedByServer:
        return False
    return True


def known_job(project: Project) -> str | None:
    known = files.read_json(project.kept / "job.json", NewestJob)
    return None if known is None else known.name


def _asked(project: Project, without: Sequence[str] = ()) -> str:
    job = {name: value for name, value in msgspec.to_builtins(project.file.job).items() if name not in without}
    told = [msgspec.json.encode(job), _digest(project.bundle / FILE_NAME)]
    if project.file.data.held_out:
        told.append(_digest(project.path(project.file.data.held_out)))
    return hashlib.sha256(b"".join(told)).hexdigest()


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""


def invitation(project: Project, administrator: Administrator, publisher: str) -> str:
    """Return a token with which devices join and which names the publisher; the last one as long as it is valid."""
    path = project.kept / "token.json"
    known = files.read_json(path, EnrolmentToken)
    good = {one["id"] for one in administrator.get("/v1/tokens") if _good(one)}
    if known is None or known.id not in good:
        wanted = {"label": project.file.job.name, "uses": TOKEN_USES, "seconds": TOKEN_DAYS * 86_400}
        made = administrator.post("/v1/tokens", wanted)
        known = EnrolmentToken(made["id"], made["token"])
        files.write(path, msgspec.json.encode(known), mode=files.PRIVATE)
    return f"{known.token}.{publisher}"


def _good(token: dict[str, Any]) -> bool:
    return not token["revoked"] and token["uses"] < token["max_uses"] and token["expires"] > time.time()

"""Send changes to pages that show the fleet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from server.control import devices as fleet
from server.control import outlook, views
from server.jobs.job import Job
from server.storage.jobs import find_job, list_jobs
from server.storage.store import Store
from server.web.services import UseServices, Viewer
from server.web.streams import News, ServerSentEvent, stream

router = APIRouter(prefix="/v1", tags=["operations"])

_LOOK = 1.0
_ROUNDS = 200
_REFUSALS = 50
_DEVICES = 20
"""The most devices that are sent, those at work first; a page of their own has all."""
_ADVISE_EVERY = 2.0
"""Seconds: who could take part is looked for among all devices."""
_SETTLED = 60.0
"""Seconds after its end when a job is as it will stay."""


@router.get("/events", dependencies=[Viewer], response_class=StreamingResponse)
async def events(services: UseServices, request: Request, job: str | None = None) -> StreamingResponse:
    """Send server-sent events about all jobs and devices, and in detail about one job, by id or name.

    `jobs`, `devices`, `rounds`, `metrics`, `traffic` and `refusals` are lists: all rows at first, and later those that
    are new or changed, each whole. `devices` are the first that `fleet` names, which counts all by their states; others
    are at `/v1/fleet`. `assignment` is one object, or null before the first device has joined; `advice` is a list of
    lines, whole at each change.
    """
    chosen = None if job is None else (await run_in_threadpool(find_job, services.store, job)).id
    return stream(services, request, ("fleet", chosen), lambda: Feed(services.store, chosen), _LOOK)


class _Told:
    """The rows of one kind that pages know."""

    def __init__(self, name: str, *key: str, most: int | None = None) -> None:
        """Keep the newest `most` rows, by their key, where a page shows no more."""
        self._name = name
        self._key = key
        self._most = most
        self._known: dict[Any, str] = {}
        self._any = False

    def news(self, rows: Iterable[BaseModel]) -> Iterable[ServerSentEvent]:
        changed: list[str] = []
        for row in rows:
            key, text = tuple(getattr(row, name) for name in self._key), row.model_dump_json()
            if self._known.get(key) != text:
                self._known[key] = text
                changed.append(text)
        if changed or not self._any:
            self._any = True
            yield ServerSentEvent(self._name, f"[{','.join(changed)}]")
        if self._most is not None and len(self._known) > self._most:
            for key in sorted(self._known)[: -self._most]:
                del self._known[key]

    def only(self, keys: Iterable[Any]) -> None:
        """Forget rows that pages show no more; they are sent again when they come back."""
        kept = set(keys)
        self._known = {key: text for key, text in self._known.items() if key in kept}

    def all(self) -> Iterable[ServerSentEvent]:
        if self._any:
            yield ServerSentEvent(self._name, f"[{','.join(self._known.values())}]")


class Feed:
    """The state of the pages that show a job: the events that were sent, and those that are next."""

    def __init__(self, store: Store, chosen: str | None) -> None:
        self._store = store
        self._chosen = chosen
        self._jobs = _Told("jobs", "id")
        self._devices = _Told("devices", "id")
        self._rounds = _Told("rounds", "number", most=_ROUNDS)
        self._metrics = _Told("metrics", "round", "name")
        self._traffic = _Told("traffic", "round")
        self._refusals = _Told("refusals", "id", most=_REFUSALS)
        self._fleet: str | None = None
        self._assignment: str | None = None
        self._advice: tuple[float, str, str | None] = (-_ADVISE_EVERY, "", None)
        self._round = 0
        self._measured = -1
        self._moved: object = None
        self._refused: object = None
        self._settled: set[str] = set()

    def news(self) -> News:
        known = list_jobs(self._store)
        shown = {job.id: views.job(self._store, job) for job in known if job.id not in self._settled}
        self._settled = {job.id for job in known if job.ended is not None and self._store.now() > job.ended + _SETTLED}
        told = [*self._jobs.news(shown.values()), *self._first_devices()]
        for job in known:
            if job.id == self._chosen and job.id in shown:
                told += self._details(job, shown[job.id])
        return News(told)

    def all(self) -> list[ServerSentEvent]:
        """Return all events for a page that connects now."""
        lists = (self._jobs, self._devices, self._rounds, self._metrics, self._traffic, self._refusals)
        told = [event for known in lists for event in known.all()]
        ones = {"fleet": self._fleet, "advice": self._advice[2], "assignment": self._assignment}
        return told + [ServerSentEvent(name, text) for name, text in ones.items() if text is not None]

    def _first_devices(self) -> Iterable[ServerSentEvent]:
        known, rows = fleet.first_devices(self._store, _DEVICES)
        yield from self._devices.news(rows)
        self._devices.only((row.id,) for row in rows)
        if (text := known.model_dump_json()) != self._fleet:
            self._fleet = text
            yield ServerSentEvent("fleet", text)

    def _advised(self, job: Job) -> Iterable[ServerSentEvent]:
        read, state, told = self._advice
        if state == job.state and time.monotonic() < read + _ADVISE_EVERY:
            return
        text = json.dumps(outlook.advice(self._store, job))
        self._advice = time.monotonic(), job.state, text
        if text != told:
            yield ServerSentEvent("advice", text)

    def _details(self, job: Job, shown: views.JobView) -> Iterable[ServerSentEvent]:
        """Rounds that may have changed: the newest that the page knows, and those after it."""
        changed = job.round - self._round + 2
        yield from self._rounds.news(views.rounds_of(self._store, job, None, min(changed, _ROUNDS)))
        self._round = job.round
        measured = views.metrics_of(self._store, job, after=self._measured)
        self._measured = max((row.round for row in measured), default=self._measured)
        yield from self._metrics.news(measured)
        if (shown.up, shown.down) != self._moved:
            self._moved = shown.up, shown.down
            yield from self._traffic.news(views.traffic_of_rounds(self._store, job))
        if shown.refused != self._refused:
            self._refused = shown.refused
            yield from self._refusals.news(views.refusals_of(self._store, job, _REFUSALS))
        yield from self._advised(job)
        part = fleet.assignment(self._store, job)
        text = "null" if part is None else part.model_dump_json()
        if text != self._assignment:
            self._assignment = text
            yield ServerSentEvent("assignment", text)

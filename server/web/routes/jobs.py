"""Jobs: made and steered by administrators, followed by anybody who may."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from annotated_types import Ge, Le, Len
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, field_validator
from starlette.concurrency import run_in_threadpool

from edge_client.wire.protocol import SAFETENSORS, STEPS, VERSION_HEADER
from server.control import jobs, views
from server.control.adapters import adapter_archive
from server.control.devices import AssignmentsView, assignment
from server.control.log import LogView, log_of
from server.control.outlook import advice
from server.control.views import JobView, MetricView, RefusalView, RoundView, TrafficView
from server.errors import Refusal
from server.jobs.choices.starts import JobCost, cost_of
from server.jobs.job import ENDED, PAUSED, RUNNING, Job
from server.jobs.settings import JobSettings
from server.rounds.outcome.late import as_begun
from server.rounds.outcome.weights import check_known, steps_since, weights_since
from server.storage.jobs import find_job, list_jobs
from server.storage.store import Store
from server.web.admission import Route
from server.web.services import ByAdmin, ByOperator, Device, Services, UseServices, Viewer
from server.web.streams import News, ServerSentEvent, stream

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=Route)

_POLL = 0.02
_LOOK = 1.0
_LONGEST_WAIT = 60.0
Version = Annotated[int, Query(ge=-1, lt=2**31)]
Published = Annotated[float | None, Query(ge=0, description="When that version was published, according to the task")]
After = Annotated[int, Query(ge=-1, lt=2**31, description="Only rounds with a higher number")]


class NewJob(BaseModel):
    """A job to start, as `spry job create` sends it."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Len(1, 100)]
    bundle: Annotated[str, Len(64, 64)]
    settings: JobSettings = JobSettings()

    @field_validator("name")
    @classmethod
    def _fits_a_path(cls, name: str) -> str:
        if "/" in name or name in (".", "..") or not name.isprintable():
            raise ValueError(f"a job's name becomes a part of addresses: no / and no line breaks, got {name!r}")
        return name


class Reason(BaseModel):
    """The reason to stop a job."""

    reason: Annotated[str, Len(0, 200)] = ""


class MoreRounds(BaseModel):
    """The length of a job."""

    model_config = ConfigDict(extra="forbid")

    rounds: Annotated[int, Ge(1), Le(1_000_000)]
    patience: Annotated[int, Ge(1)] | None = None
    """Unchanged where it is left out."""


# --- administrators --------------------------------------------------------------------------------------------------


@router.post("", status_code=201)
def create(services: UseServices, by: ByOperator, wanted: NewJob) -> JobView:
    """Start a job on an uploaded bundle."""
    job = jobs.create_job(services.store, wanted.name, wanted.bundle, wanted.settings, by)
    services.store.wake.set()
    return views.job(services.store, job)


@router.get("", dependencies=[Viewer])
def list_all(services: UseServices) -> list[JobView]:
    """List all jobs."""
    return [views.job(services.store, job) for job in list_jobs(services.store)]


@router.get("/{job}", dependencies=[Viewer])
def show(services: UseServices, job: str) -> JobView:
    """Show a job's state, by its id or name."""
    return views.job(services.store, find_job(services.store, job))


@router.post("/{job}/pause")
def pause(services: UseServices, by: ByOperator, job: str) -> JobView:
    """Give out no more tasks; devices may finish those that they have."""
    return views.job(services.store, jobs.set_state(services.store, job, PAUSED, by))


@router.post("/{job}/resume")
def resume(services: UseServices, by: ByOperator, job: str) -> JobView:
    """Continue a job that was paused, or set aside because of an error."""
    resumed = jobs.set_state(services.store, job, RUNNING, by)
    services.store.wake.set()
    return views.job(services.store, resumed)


@router.post("/{job}/extend")
def extend(services: UseServices, by: ByOperator, job: str, wanted: MoreRounds) -> JobView:
    """Go on with a job for more rounds, from the weights that it has; also where it ended when its rounds were done."""
    extended = jobs.extend(services.store, job, wanted.rounds, wanted.patience, by)
    services.store.wake.set()
    return views.job(services.store, extended)


@router.post("/{job}/stop")
def stop(services: UseServices, by: ByAdmin, job: str, why: Reason | None = None) -> JobView:
    """End the job for good; its weights stay."""
    reason = (why.reason if why else "") or "stopped by an administrator"
    return views.job(services.store, jobs.set_state(services.store, job, ENDED, by, reason))


@router.get("/{job}/rounds", dependencies=[Viewer])
def list_rounds(
    services: UseServices,
    job: str,
    before: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: After = -1,
) -> list[RoundView]:
    """List a job's rounds, the newest first."""
    return views.rounds_of(services.store, find_job(services.store, job), before, limit, after)


@router.get("/{job}/assignment", dependencies=[Viewer])
def read_assignment(services: UseServices, job: str) -> AssignmentsView | None:
    """Tell who trains what, and by which step, in the newest round that a device has joined."""
    return assignment(services.store, find_job(services.store, job))


@router.get("/{job}/cost", dependencies=[Viewer])
def read_cost(services: UseServices, job: str) -> JobCost:
    """Compute the job's cost for one device, a mean over a round's assignments, by its settings and bundle."""
    known = find_job(services.store, job)
    return cost_of(services.store.bundles.manifest(known.bundle), known.settings)


@router.get("/{job}/metrics", dependencies=[Viewer])
def list_metrics(services: UseServices, job: str, after: After = -1) -> list[MetricView]:
    """List losses and accuracies by round."""
    return views.metrics_of(services.store, find_job(services.store, job), after)


@router.get("/{job}/traffic", dependencies=[Viewer])
def list_traffic(services: UseServices, job: str) -> list[TrafficView]:
    """List the bytes of bodies by round and device; other workers' are up to some seconds old."""
    services.store.traffic.save()
    return views.traffic_of(services.store, find_job(services.store, job))


@router.get("/{job}/refusals", dependencies=[Viewer])
def list_refusals(
    services: UseServices, job: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> list[RefusalView]:
    """List updates that were refused, the newest first."""
    return views.refusals_of(services.store, find_job(services.store, job), limit)


@router.get("/{job}/log", dependencies=[Viewer])
def read_log(services: UseServices, job: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[LogView]:
    """List a job's events, the newest first: people's actions, ends of rounds, refusals."""
    return log_of(services.store, find_job(services.store, job), limit)


@router.get("/{job}/advice", dependencies=[Viewer])
def read_advice(services: UseServices, job: str) -> list[str]:
    """Return what holds a job up, and what to do about it; nothing while it makes progress."""
    return advice(services.store, find_job(services.store, job))


@router.get("/{job}/adapter", dependencies=[Viewer], response_class=Response)
def adapter(
    services: UseServices,
    job: str,
    version: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    form: Annotated[str, Query(alias="format", max_length=20)] = "peft",
) -> Response:
    """Download what was learned as a .zip, for `PeftModel.from_pretrained` (peft) or llama.cpp and Ollama (gguf)."""
    known = find_job(services.store, job)
    chosen = known.version if version is None else version
    content = adapter_archive(services.store, known, chosen, form)
    name = f"{known.id}-{chosen}.zip" if form == "peft" else f"{known.id}-{chosen}-{form}.zip"
    headers = {VERSION_HEADER: str(chosen), "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/zip", headers=headers)


@router.get("/{job}/events", dependencies=[Viewer], response_class=StreamingResponse)
async def events(services: UseServices, job: str, request: Request) -> StreamingResponse:
    """Send the job's view as a server-sent event whenever it changes, until the job has ended."""
    chosen = (await run_in_threadpool(find_job, services.store, job)).id
    return stream(services, request, ("job", chosen), lambda: _Standing(services.store, chosen), _LOOK / 2)


class _Standing:
    """A job's view, with the one of the last look."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._job = job
        self._told = ""

    def news(self) -> News:
        shown = views.job(self._store, find_job(self._store, self._job))
        before, self._told = self._told, json.dumps(shown.model_dump(mode="json"))
        return News(self.all() if self._told != before else [], goes_on=shown.state != ENDED)

    def all(self) -> list[ServerSentEvent]:
        return [ServerSentEvent("job", self._told)]


# --- devices ---------------------------------------------------------------------------------------------------------

_TENSORS: dict[int | str, dict[str, Any]] = {
    200: {"content": {SAFETENSORS: {}, STEPS: {}}},
    204: {"description": "Nothing newer"},
}


@router.get("/{job}/weights", responses=_TENSORS, response_class=Response)
def weights(
    services: UseServices, device: Device, job: str, since: Version = -1, published: Published = None
) -> Response:
    """Download the parameters that moved after a version; in mode iteration all, with the optimizer's state."""
    known = as_begun(services.store, find_job(services.store, job), device.id)
    check_known(services.store, known, since, published)
    headers = {VERSION_HEADER: str(known.version)}
    if since == known.version:
        return Response(status_code=204, headers=headers)
    body = weights_since(services.store, known, since)
    traffic = services.store.traffic
    traffic.add(traffic.of_round(device.id, known.id, known.round), device.id, down=len(body))
    return Response(body, media_type=SAFETENSORS, headers=headers)


@router.get("/{job}/steps", responses=_TENSORS, response_class=Response)
async def steps(
    services: UseServices,
    device: Device,
    job: str,
    since: Version,
    wait: Annotated[float, Query(ge=0, le=_LONGEST_WAIT)] = 0.0,
) -> Response:
    """Download the records after a version, or the weights where those are fewer bytes (mode iteration)."""
    known = await run_in_threadpool(find_job, services.store, job)
    known = await _newer(services, known, since, wait)
    headers = {VERSION_HEADER: str(known.version)}
    if known.version <= since and known.state == ENDED and wait:
        raise Refusal(409, "late", f"job {known.name} has ended ({known.reason}): no step follows; check in again")
    if known.version <= since:
        return Response(status_code=204, headers=headers)
    body, media_type = await run_in_threadpool(_steps, services, known, since, device.id)
    return Response(body, media_type=media_type, headers=headers)


def _steps(services: Services, job: Job, since: int, device: str) -> tuple[bytes, str]:
    body, media_type = steps_since(services.store, job, since)
    traffic = services.store.traffic
    traffic.add(traffic.of_round(device, job.id, job.round), device, down=len(body))
    return body, media_type


async def _newer(services: Services, job: Job, since: int, wait: float) -> Job:
    """Wait for a version of the job after `since`, and return the job, or as it is when the wait is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    look = loop.time() + _LOOK
    while job.version <= since and job.state != ENDED and not services.stopping.is_set() and loop.time() < until:
        await asyncio.sleep(_POLL)
        if services.store.models.announced(job.id) > job.version or loop.time() > look:
            job = await run_in_threadpool(find_job, services.store, job.id)
            look = loop.time() + _LOOK
    return job

"""Receive devices' results of tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from edge_client.secagg.messages import Message
from edge_client.wire.proofs import digest_header, digest_of
from edge_client.wire.protocol import SAFETENSORS, EvaluationReport, Failure, Receipt
from server.control.proofs import require_digest
from server.errors import Refusal
from server.rounds.arrivals.summands import LARGEST
from server.web.admission import Route
from server.web.bodies import binary, read, received, takes
from server.web.services import Device, SignedBody, UseServices, signed

router = APIRouter(prefix="/v1/tasks/{task}", tags=["tasks"], route_class=Route)

_FAILURE = 16 << 10


@router.put("/update", openapi_extra=binary(SAFETENSORS))
async def put_update(services: UseServices, device: Device, task: str, request: Request) -> Receipt:
    """Upload the new weights of the task's units and the head; sending the same again changes nothing."""
    reports = services.reports
    limit = await run_in_threadpool(reports.largest_update, device.id, task)
    try:
        patience = services.store.settings.patience_seconds
        with services.uploads.one(device.id, task):
            async with received(request, services.store.blobs, limit, patience) as body:
                require_digest(signed(request), digest_header(bytes.fromhex(body.sha256)))
                return await run_in_threadpool(reports.take_update, device.id, task, body.path, body.sha256)
    except Refusal as refusal:
        if refusal.code == "too-large":
            await run_in_threadpool(reports.note_oversized, device.id, task, refusal)
        raise


@router.put("/jvps/{iteration}", openapi_extra=binary())
async def put_scalars(
    services: UseServices,
    device: Device,
    task: str,
    iteration: Annotated[int, Path(ge=0, lt=2**31)],
    request: Request,
) -> Receipt:
    """Upload the derivatives of one step (mode iteration)."""
    reports = services.reports
    limit = await run_in_threadpool(reports.largest_scalars, device.id, task)
    with services.uploads.one(device.id, task):
        report = await read(request, limit, services.store.settings.patience_seconds)
    require_digest(signed(request), digest_of(report))
    return await run_in_threadpool(reports.take_scalars, device.id, task, iteration, report)


@router.put("/judgement", dependencies=[SignedBody])
@takes(_FAILURE)
def put_evaluation(services: UseServices, device: Device, task: str, evaluation: EvaluationReport) -> Receipt:
    """Take a device's measurements after a round of mode iteration, if its task asked for them."""
    return services.reports.take_evaluation(device.id, task, evaluation)


@router.get("/sum", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}})
def get_sum(services: UseServices, device: Device, task: str) -> Response:
    """Fetch the state of the task's secure sum, and its request to the device."""
    return Response(services.reports.view(device.id, task), media_type="application/octet-stream")


@router.put("/sum/{message}", openapi_extra=binary())
async def put_message(services: UseServices, device: Device, task: str, message: Message, request: Request) -> Receipt:
    """Take the device's message for the sum; sending the same again changes nothing."""
    with services.uploads.one(device.id, task):
        data = await read(request, LARGEST, services.store.settings.patience_seconds)
    require_digest(signed(request), digest_of(data))
    return await run_in_threadpool(services.reports.take_message, device.id, task, message, data)


@router.post("/failure", dependencies=[SignedBody])
@takes(_FAILURE, any_text=True)
def post_failure(services: UseServices, device: Device, task: str, failure: Failure) -> Receipt:
    """Give the task back; its slot goes to another device."""
    return services.reports.take_failure(device.id, task, failure.reason)

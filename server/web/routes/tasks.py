"""Tasks: what devices send back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Request
from starlette.concurrency import run_in_threadpool

from edge_client.wire.proofs import digest_header
from edge_client.wire.protocol import SAFETENSORS, Failure, Receipt
from server.control.proofs import require_digest
from server.errors import Refusal
from server.web.bodies import binary, received
from server.web.services import Device, SignedBody, UseServices, signed

router = APIRouter(prefix="/v1/tasks/{task}", tags=["tasks"])


@router.put("/update", openapi_extra=binary(SAFETENSORS))
async def put_update(services: UseServices, device: Device, task: str, request: Request) -> Receipt:
    """The new weights of the task's units and the head; sending the same again changes nothing."""
    reports = services.reports
    limit = await run_in_threadpool(reports.largest_update, device.id, task)
    try:
        async with received(request, services.store.blobs, limit) as body:
            require_digest(signed(request), digest_header(bytes.fromhex(body.sha256)))
            return await run_in_threadpool(reports.take_update, device.id, task, body.path, body.sha256)
    except Refusal as refusal:
        if refusal.code == "too-large":
            await run_in_threadpool(reports.note_oversized, device.id, task, refusal)
        raise


@router.put("/jvps/{iteration}", dependencies=[SignedBody])
def put_scalars(
    services: UseServices,
    device: Device,
    task: str,
    iteration: Annotated[int, Path(ge=0, lt=2**31)],
    report: Annotated[bytes, Body(media_type="application/octet-stream", max_length=64 << 20)],
) -> Receipt:
    """The derivatives of one step (mode iteration)."""
    return services.reports.take_scalars(device.id, task, iteration, report)


@router.post("/failure", dependencies=[SignedBody])
def post_failure(services: UseServices, device: Device, task: str, failure: Failure) -> Receipt:
    """Give the task back; its place goes to another device."""
    return services.reports.take_failure(device.id, task, failure.reason)

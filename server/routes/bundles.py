"""Bundles and held-out examples: uploaded by administrators, downloaded by devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from server.bodies import binary, received
from server.errors import Refusal
from server.services import Admin, DeviceOrAdmin, UseServices

router = APIRouter(prefix="/v1", tags=["bundles"])

Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
_IMMUTABLE = "public, max-age=31536000, immutable"


@router.get("/bundles/{bundle}/missing", dependencies=[Admin])
def missing(services: UseServices, bundle: Sha256) -> list[str]:
    """The files of a bundle that have not arrived."""
    return services.store.bundles.missing(bundle)


@router.put("/bundles/{bundle}/{path:path}", status_code=204, dependencies=[Admin], openapi_extra=binary())
async def put_file(services: UseServices, bundle: Sha256, path: str, request: Request) -> None:
    """A file of a bundle, the manifest first."""
    bundles = services.store.bundles
    limit = await run_in_threadpool(bundles.limit, bundle, path)
    async with received(request, services.store.blobs, limit) as body:
        await run_in_threadpool(bundles.add, bundle, path, body.path)


@router.get("/bundles/{bundle}/{path:path}", dependencies=[DeviceOrAdmin], response_class=FileResponse)
def get_file(services: UseServices, bundle: Sha256, path: str) -> FileResponse:
    """A file of a bundle; takes Range."""
    found, spec = services.store.bundles.file(bundle, path)
    headers = {"Cache-Control": _IMMUTABLE, "ETag": f'"{spec.sha256}"'}
    return FileResponse(found, headers=headers, media_type="application/octet-stream")


@router.put("/held-out/{sha256}", status_code=204, dependencies=[Admin], openapi_extra=binary())
async def put_held_out(services: UseServices, sha256: Sha256, request: Request) -> None:
    """Examples (JSONL) that jobs are evaluated on; they never leave the server."""
    blobs = services.store.blobs
    async with received(request, blobs, services.store.settings.max_held_out_bytes) as body:
        if body.sha256 != sha256:
            found = body.sha256[:12]
            raise Refusal(422, "invalid", f"the body has sha256 {found}…, expected {sha256[:12]}…: send it again")
        await run_in_threadpool(blobs.adopt, body.path, sha256)

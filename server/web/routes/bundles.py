"""Bundles and held-out examples: uploaded by administrators, downloaded by devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args

from annotated_types import Ge, Len
from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from edge_client.bundle.manifest import Manifest
from edge_client.bundle.signature import SIGNATURES
from edge_client.wire.protocol import Mode
from server.control.jobs import bundle_names, name_bundle, require_whole
from server.errors import Refusal
from server.jobs.choices.described import SettingsGroup, described
from server.jobs.choices.starts import JobPlan, PresetView, planned, presets_of
from server.jobs.presets import preset_for, start_of
from server.rounds.selection.fleet import rows_here
from server.web.admission import Route
from server.web.bodies import binary, received
from server.web.services import ByOperator, DeviceOrAdmin, Operator, UseServices, Viewer

router = APIRouter(prefix="/v1", tags=["bundles"], route_class=Route)

Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
_MAY_CHANGE, _IMMUTABLE = "no-cache", "public, max-age=31536000, immutable"


class BundleName(BaseModel):
    """The name that people call a bundle by."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Len(0, 100)]


class BundleView(BaseModel):
    """A bundle that jobs can be made on, and what their settings must choose from."""

    sha256: str
    name: str
    """The name that people gave it; empty without one."""
    model: str
    task: str
    labels: int
    method: str
    units: int
    runtimes: list[str]
    shapes: list[tuple[int, int]]
    directions: list[int]
    bytes: int
    preset: str
    """The one that fits its adapter."""
    settings: dict[str, Any]
    """The settings of this preset, from which a job on it starts."""
    in_mode: dict[Mode, dict[str, Any]]
    """The same where a mode is asked for, which may want another preset."""
    presets: list[PresetView]
    """List the presets that a job on a bundle may start from, the fitting one first, with what each costs a device."""
    publishers: list[str]
    """Public keys of those who signed it."""


class JobWish(BaseModel):
    """The wishes of somebody for a job, before it is made."""

    model_config = ConfigDict(extra="forbid")

    preset: Annotated[str, Len(0, 100)] = ""
    """The preset that settings start from; what fits the adapter when left out."""
    settings: dict[str, Any] = {}
    """Over those of the preset."""
    rows: Annotated[int, Ge(0)] | None = None
    """The number of rows to learn from; when left out, as many as the devices have that are here."""


@router.get("/bundles", dependencies=[Viewer])
def list_bundles(services: UseServices) -> list[BundleView]:
    """List bundles, the newest first, without those whose files have not all arrived."""
    bundles, called, rows = services.store.bundles, bundle_names(services.store), rows_here(services.store)
    return [
        _bundle(name, bundles.manifest(name), called.get(name, ""), bundles.publishers(name), rows)
        for name in bundles.complete()
    ]


@router.get("/job-settings", dependencies=[Viewer])
def list_settings() -> list[SettingsGroup]:
    """List all settings of a job in groups, each with its kind, its bounds and a line of help."""
    return described()


@router.post("/bundles/{bundle}/plan", dependencies=[Viewer])
def plan(services: UseServices, bundle: Sha256, wish: JobWish) -> JobPlan:
    """Compute a job's settings, and its cost for a device; creates nothing."""
    require_whole(services.store, bundle)
    try:
        rows = rows_here(services.store) if wish.rows is None else wish.rows
        return planned(services.store.bundles.manifest(bundle), wish.settings, wish.preset, rows)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


@router.patch("/bundles/{bundle}", status_code=204)
def rename(services: UseServices, by: ByOperator, bundle: Sha256, wanted: BundleName) -> None:
    """Name a bundle whose files have all arrived; an empty name removes the name."""
    name_bundle(services.store, bundle, wanted.name, by)


def _bundle(name: str, manifest: Manifest, called: str, publishers: list[str], rows: int | None) -> BundleView:
    method = manifest.adapter.method
    preset = preset_for(method, {})
    return BundleView(
        sha256=name,
        name=called,
        model=manifest.model.name,
        task=manifest.model.task,
        labels=len(manifest.model.labels),
        method=method,
        units=len(manifest.units),
        runtimes=list(manifest.runtimes),
        shapes=list(manifest.shapes),
        directions=list(manifest.directions),
        bytes=sum(file.bytes for file in manifest.files),
        preset=preset,
        settings=start_of(manifest, preset, rows),
        in_mode={mode: start_of(manifest, preset_for(method, {"mode": mode}), rows) for mode in get_args(Mode)},
        presets=presets_of(manifest, rows),
        publishers=publishers,
    )


@router.get("/bundles/{bundle}/missing", dependencies=[Viewer])
def missing(services: UseServices, bundle: Sha256) -> list[str]:
    """List the files of a bundle that have not arrived."""
    return services.store.bundles.missing(bundle)


@router.put("/bundles/{bundle}/{path:path}", status_code=204, dependencies=[Operator], openapi_extra=binary())
async def put_file(services: UseServices, bundle: Sha256, path: str, request: Request) -> None:
    """Upload a file of a bundle, the manifest first."""
    bundles = services.store.bundles
    limit = await run_in_threadpool(bundles.limit, bundle, path)
    async with received(request, services.store.blobs, limit, services.store.settings.patience_seconds) as body:
        await run_in_threadpool(bundles.add, bundle, path, body.path)


@router.get("/bundles/{bundle}/{path:path}", response_class=FileResponse)
def get_file(services: UseServices, asking: DeviceOrAdmin, bundle: Sha256, path: str) -> FileResponse:
    """Download a file of a bundle; takes Range."""
    file, spec = services.store.bundles.file(bundle, path)
    options: dict[str, Any] = {
        "headers": {"Cache-Control": _MAY_CHANGE if path == SIGNATURES else _IMMUTABLE, "ETag": f'"{spec.sha256}"'},
        "media_type": "application/octet-stream",
    }
    if asking is None:
        return FileResponse(file, **options)
    traffic, device = services.store.traffic, asking.id
    where = traffic.of_task(device)
    return CountedFile(file, sent=lambda size: traffic.add(where, device, down=size), **options)


@router.put("/held-out/{sha256}", status_code=204, dependencies=[Operator], openapi_extra=binary())
async def put_held_out(services: UseServices, sha256: Sha256, request: Request) -> None:
    """Upload held-out examples (JSONL) for evaluations; they never leave the server."""
    blobs = services.store.blobs
    settings = services.store.settings
    async with received(request, blobs, settings.max_held_out_bytes, settings.patience_seconds) as body:
        if body.sha256 != sha256:
            digest = body.sha256[:12]
            raise Refusal(422, "invalid", f"the body has sha256 {digest}…, expected {sha256[:12]}…: send it again")
        await run_in_threadpool(blobs.adopt, body.path, sha256)


class CountedFile(FileResponse):
    """A file, or the range of it that was asked for, which counts the bytes that were sent."""

    def __init__(self, *args: Any, sent: Callable[[int], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted(message: Message) -> None:
            nonlocal size
            await send(message)
            size += len(message.get("body", b""))

        try:
            await super().__call__(scope, receive, counted)
        finally:
            self._sent(size)

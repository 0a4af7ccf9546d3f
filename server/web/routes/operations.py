"""Operate the server: health, metrics and the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from server.control import views
from server.control.exposition import exposition
from server.control.views import AuditView
from server.storage.schema.rows import Role
from server.web.services import Asking, Scraper, UseServices, Viewer

router = APIRouter(tags=["operations"])


class AskingView(BaseModel):
    """The person whose token a request came with."""

    name: str
    role: Role


@router.get("/healthz", response_class=PlainTextResponse)
async def health() -> str:
    """Answer while this process is alive; a process that does not answer has to be restarted."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse)
def ready(services: UseServices) -> str:
    """Check that this process can do its work: its database and files answer, and it is not about to stop."""
    services.readiness.require()
    return "ok\n"


@router.get("/metrics", response_class=Response, dependencies=[Scraper])
def metrics(services: UseServices) -> Response:
    """Export metrics for Prometheus, counted in the database, so that all workers agree. Has no names of devices."""
    return Response(exposition(services.store), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/me")
def me(who: Asking) -> AskingView:
    """Return the caller's name and role, which decides the actions that pages offer."""
    return AskingView(name=who.name, role=who.role)


@router.get("/v1/audit", dependencies=[Viewer])
def audit(services: UseServices, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> list[AuditView]:
    """List the actions of people and devices, the newest first."""
    return views.audit_log(services.store, limit)

"""For those who run the server: health, metrics and the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from server.control import views
from server.control.exposition import exposition
from server.control.views import AuditView
from server.errors import Refusal
from server.storage.schema.rows import Role
from server.web.services import Asking, Scraper, UseServices, Viewer

router = APIRouter(tags=["operations"])


class AskingView(BaseModel):
    """Whose token a request came with."""

    name: str
    role: Role


@router.get("/healthz", response_class=PlainTextResponse)
def health(services: UseServices) -> str:
    """Whether requests can be served."""
    services.store.database.ask()
    if services.stopping.is_set():
        raise Refusal(503, "busy", "the server is stopping: ask again in a few seconds", retry_after=5)
    return "ok\n"


@router.get("/metrics", response_class=Response, dependencies=[Scraper])
def metrics(services: UseServices) -> Response:
    """For Prometheus; counted in the database, so that all workers tell the same. Holds no names of devices."""
    return Response(exposition(services.store), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/me")
def me(who: Asking) -> AskingView:
    """Who asks, and as what: what a page offers them."""
    return AskingView(name=who.name, role=who.role)


@router.get("/v1/audit", dependencies=[Viewer])
def audit(services: UseServices, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> list[AuditView]:
    """Who did what, the newest first."""
    return views.audit_log(services.store, limit)

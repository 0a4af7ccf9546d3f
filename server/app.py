"""`uvicorn server.app:app`. Assembles; what happens is in the modules that this one names."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client import __version__
from server import logs
from server.addresses import TrueClient
from server.control.people import note_token
from server.errors import ServerConfigError
from server.names import ADMIN_TOKEN
from server.rounds.arrivals.summands import Summands
from server.rounds.publisher import WeightsPublisher
from server.rounds.selection.offers import Offers
from server.rounds.ticker import Ticker
from server.settings import Settings, read_settings
from server.storage.files.publication import open_target
from server.storage.jobs import list_jobs
from server.storage.store import Store
from server.web import guide, problems, reference
from server.web.admission import Door
from server.web.checkins import AtOnce
from server.web.connections import InTurn, guard
from server.web.load import Load
from server.web.pages import Pages
from server.web.readiness import Readiness
from server.web.routes import access, bundles, dashboard, devices, events, jobs, operations, tasks
from server.web.services import Services
from server.web.signals import hear_signals

log = logging.getLogger("uvicorn.error")  # where uvicorn's own start-up lines go


def _every_route() -> APIRouter:
    router = APIRouter(responses=problems.DOCUMENTED)
    for module in (devices, tasks, bundles, jobs, events, operations, access, dashboard):
        router.include_router(module.router)
    return router


_ROUTES = _every_route().routes
"""The routes of all applications of a process: their messages' schemas are built once, at the first request."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Create the application; settings left out are read from the environment when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        try:
            store = Store(settings or read_settings())
        except ServerConfigError as error:
            app.state.refused = str(error)
            raise
        stopping = threading.Event()
        hear_signals(stopping)
        guard(store.settings.patience_seconds, store.settings.trusted_proxies)
        offers = Offers(store)
        store.roster.load()
        note_token(store)
        load = Load(store.presence)
        app.state.services = Services(store, offers, Summands(store), load, stopping, Readiness(store, stopping))
        ticker = Ticker(store, offers, stopping)
        ticker.start()
        target = open_target(store.settings.publish_weights) if store.settings.background else None
        publisher = None if target is None else WeightsPublisher(store, target, stopping)
        if publisher is not None:
            publisher.start()
        _say_what_next(store)
        yield
        load.close()
        ticker.stop()
        if publisher is not None:
            publisher.stop()
        store.close()

    app = FastAPI(
        title="spry",
        version=__version__,
        lifespan=lifespan,
        routes=list(_ROUTES),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,  # one name for each message in the reference
    )
    app.add_middleware(AtOnce)
    app.add_middleware(Door)
    app.add_middleware(PlainRefusal)
    app.add_middleware(InTurn)
    app.add_middleware(logs.RequestLog)
    app.add_middleware(TrueClient)
    problems.install(app)
    app.mount("/dashboard", Pages(dashboard.FOLDER, dashboard.HEADERS))
    problems.describe(app)
    reference.install(app)
    guide.install(app)
    return app


class PlainRefusal:
    """Says why the server does not start in one line; a traceback would bury it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def told(message: Message) -> None:
            why = getattr(scope["app"].state, "refused", None)
            if message["type"] == "lifespan.startup.failed" and why:
                message = {**message, "message": f"error: {why}"}
            await send(message)

        await self._app(scope, receive, told)


def _say_what_next(store: Store) -> None:
    kept = store.folder / ADMIN_TOKEN
    where = "SPRY_ADMIN_TOKEN" if store.settings.admin_token.get_secret_value() else f"in {kept}"
    log.info("data folder: %s; administrator's token: %s", store.folder, where)
    if not list_jobs(store):
        log.info("no job yet: `spry job create NAME --bundle FOLDER`, then `spry token create` and, on each device,")
        log.info("`spry join --server URL --token TOKEN --data FILE`; the dashboard is at /, the API at /docs")


logs.configure()
app = create_app()

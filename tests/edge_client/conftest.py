"""A server whose devices are clients in this process, and one that stumbles."""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from edge_client.bundle.folder import Bundle
from edge_client.client.client import Client
from edge_client.events import Event
from edge_client.runtimes.runtime import open_runtime
from tests.arrivals import arrive
from tests.edge_client.bench import Bench
from tests.edge_client.stage import Stage

ADMIN = {"Authorization": "Bearer an-administrator-of-these-tests"}
TEXTS = ("it is a train", "the ice is on the lake", "is it?", "a b c", "the lake", "on it", "no ice, no train!")
PATIENCE = 300
"""Seconds until something hangs; a busy machine is slow."""
ROWS = [{"text": text, "label": number % 3} for number, text in enumerate(TEXTS)]


class Fleet:
    """A server with a bundle, and devices that reach it."""

    rows = ROWS

    def __init__(self, app, address: str, folder: Path) -> None:
        self.app = app
        self.address = address
        self.http = httpx.Client(base_url=address, timeout=PATIENCE)  # a server on a busy disk answers in its time
        self.folder = folder
        self.clients: list[Client] = []
        self.pauses = 0
        self.events: list[Event] = []

    def call(self, method: str, path: str, **options):
        response = self.http.request(method, path, headers=ADMIN, **options)
        assert response.is_success, response.text
        return response

    def upload(self, folder: Path) -> str:
        return arrive(self.app.state.services.store, folder)

    def job(self, bundle: str, name: str = "topics", training: dict | None = None, **settings) -> dict:
        """A job whose first round is open: a client that looks once is offered its task."""
        training = {"batch": 4, "length": 8, "learning_rate": 0.1} | (training or {})
        values = {"per_round": 1, "training": training} | settings
        made = self.call("POST", "/v1/jobs", json={"name": name, "bundle": bundle, "settings": values}).json()
        until = time.monotonic() + PATIENCE
        while not self.call("GET", f"/v1/jobs/{name}/rounds").json():
            assert time.monotonic() < until
            time.sleep(0.01)
        return made

    def state(self, name: str = "topics") -> dict:
        return self.call("GET", f"/v1/jobs/{name}").json()

    def ended(self, name: str = "topics") -> dict:
        """Its state when it has: a round is published a moment after its last report."""
        self.until(lambda: self.state(name)["state"] == "ended")
        return self.state(name)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def token(self) -> str:
        return self.call("POST", "/v1/tokens", json={"uses": 10}).json()["token"]

    def client(self, data=ROWS, home: str = "home", token: bool | str = True, **options) -> Client:
        options = {"on_event": self.events.append, "pause": self.pause, "threads": 1, "holdout": 0.0} | options
        self.clients.append(
            made := Client(
                self.address,
                token if isinstance(token, str) else self.token() if token else None,
                data,
                home=self.folder / home,
                patience=PATIENCE,
                **options,
            )
        )
        return made

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        assert self.pauses < 2000, [event.message for event in self.events][-20:]
        time.sleep(min(seconds, 0.02))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in itertools.groupby(event.kind for event in self.events)]

    def told(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


@pytest.fixture
def fleet(tmp_path):
    import uvicorn

    from server.app import create_app
    from server.settings import Settings

    settings = Settings(
        data_dir=tmp_path / "data",
        admin_token=ADMIN["Authorization"].removeprefix("Bearer "),
        tick_seconds=0.05,
        retry_seconds=0.05,
        enrolments_per_minute=1000,
    )
    app = create_app(settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    fleet = Fleet(app, f"http://127.0.0.1:{port}", tmp_path)
    with fleet.http:
        yield fleet
    for client in fleet.clients:
        client.close()
    server.should_exit = True
    thread.join(PATIENCE)


@pytest.fixture
def stage():
    with Stage() as stage:
        thread = threading.Thread(target=stage.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stage
        stage.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def bench(trainable):
    """A bundle to train, opened once for a file of tests."""
    bundle = Bundle.open(trainable)
    with open_runtime("onnx", bundle.folder, threads=1) as runtime:
        yield Bench(bundle, runtime)

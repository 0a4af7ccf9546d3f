"""A real server in this process, and what an administrator and devices do with it over HTTP."""

import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save
from starlette.testclient import TestClient

from server.app import create_app
from server.settings import Settings
from tests.arrivals import arrive

ADMIN = "an-administrator-of-these-tests"


class Server:
    """Talks to the application as administrators and devices do."""

    def __init__(self, http: TestClient) -> None:
        self.http = http
        self.admin = {"Authorization": f"Bearer {ADMIN}"}

    @property
    def store(self):
        return self.http.app.state.services.store

    def call(self, method: str, path: str, status: int = 200, headers: dict | None = None, **options):
        response = self.http.request(method, path, headers=self.admin if headers is None else headers, **options)
        assert response.status_code == status, (response.status_code, response.text)
        return response

    def upload(self, folder: Path) -> str:
        return arrive(self.store, folder)

    def create_job(self, bundle: str, name: str = "job", **settings) -> dict:
        training = {"batch": 2, "length": 8} | settings.pop("training", {})
        body = {"name": name, "bundle": bundle, "settings": {"training": training, **settings}}
        return self.call("POST", "/v1/jobs", 201, json=body).json()

    def job(self, name: str = "job") -> dict:
        return self.call("GET", f"/v1/jobs/{name}").json()

    def token(self, uses: int = 1000) -> str:
        return self.call("POST", "/v1/tokens", 201, json={"uses": uses}).json()["token"]

    def device(self, name: str = "pi", token: str | None = None) -> "Device":
        body = {"token": token or self.token(), "name": name}
        enrolled = self.call("POST", "/v1/devices", 201, json=body).json()
        return Device(self, **enrolled)

    def advance(self) -> None:
        """Do the background's work now."""
        from server.rounds.rounds import advance

        for job in self.call("GET", "/v1/jobs").json():
            while advance(self.store, job["id"]):
                pass


class Device:
    """A device on the wire, whose training is a change that the test chooses."""

    def __init__(self, server: Server, device: str, secret: str) -> None:
        self.server = server
        self.id = device
        self.headers = {"Authorization": f"Bearer {device}.{secret}"}

    def call(self, method: str, path: str, status: int = 200, **options):
        return self.server.call(method, path, status, headers=self.headers, **options)

    def check_in(self, **values) -> dict:
        return self.call("POST", "/v1/check-in", json={"runtimes": ["onnx"], **values}).json()

    def task(self, **values) -> dict:
        answer = self.check_in(**values)
        assert answer["task"], answer["reason"]
        return answer["task"]

    def weights(self, job: str, since: int = -1) -> dict:
        return load(self.call("GET", f"/v1/jobs/{job}/weights", params={"since": since}).content)

    def update(self, task: dict, change: float = 0.1, examples: int = 8, **report) -> bytes:
        """The server's weights, each moved by `change`."""
        manifest = self.server.store.bundles.manifest(task["bundle"])
        names = [p.name for unit in task["units"] for p in manifest.units[unit].parameters]
        names += [p.name for p in manifest.head]
        start = self.weights(task["job"])
        moved = {name: start[name] + np.float32(change) for name in names}
        return encode(moved, examples=examples, **report)

    def send(self, task: dict, content: bytes, status: int = 200):
        return self.call("PUT", f"/v1/tasks/{task['id']}/update", status, content=content).json()


def encode(tensors: dict, **report) -> bytes:
    import json

    said = {"examples": 8, "loss": 1.0} | report
    steps = said["examples"] if isinstance(said["examples"], int) else 1
    return save(tensors, {"report": json.dumps({"steps": max(1, steps)} | said)})


@pytest.fixture
def serving(tmp_path):
    """Starts servers; all that are started on one folder share what it holds."""

    @contextmanager
    def start(folder: Path = tmp_path / "data", **settings):
        values = {"data_dir": folder, "admin_token": ADMIN, "background": False, "enrolments_per_minute": 10_000}
        with TestClient(create_app(Settings(**values | settings)), raise_server_exceptions=False) as http:
            yield Server(http)

    return start


@pytest.fixture
def server(serving):
    with serving() as server:
        yield server


@pytest.fixture
def bundle_name(server, bundle) -> str:
    return server.upload(bundle)


@pytest.fixture(scope="session")
def started_postgres():
    """The PostgreSQL servers of this process."""
    started = []
    yield started
    for server in started:
        server.cleanup()


@pytest.fixture
def postgres(started_postgres, tmp_path_factory):
    """A real server, from a wheel that brings it; another one where something killed the last between two tests."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver (PostgreSQL in a wheel) has no build for this machine")
    if not (started_postgres and _answers(started_postgres[-1])):
        started_postgres.append(pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete"))
    return started_postgres[-1]


def _answers(server) -> bool:
    try:
        server.psql("SELECT 1")
    except subprocess.CalledProcessError:
        return False
    return True


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """Settings of a server on a database of its own."""
    if request.param == "sqlite":
        return {}
    server = request.getfixturevalue("postgres")
    name = f"test_{abs(hash(tmp_path)):x}"
    server.psql(f"CREATE DATABASE {name}")
    return {"database_url": server.get_uri(name)}

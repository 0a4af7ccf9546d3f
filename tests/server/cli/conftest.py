"""Commands of an administrator, run against a real server; a device that took part."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
import uvicorn

from edge_client.client.client import Client
from edge_client.commands import cli
from server.app import create_app
from server.settings import Settings

TOKEN = "an-administrator-of-these-tests"
SETTINGS = "--rounds", "2", "--per-round", "1", "--learning-rate", "0.1"
ROWS = [{"text": text, "label": number % 3} for number, text in enumerate(("it is a train", "the ice", "on it", "a b"))]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"), admin_token=TOKEN, tick_seconds=0.05, retry_seconds=0.05
    )
    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def spry(address, capsys, monkeypatch):
    """Runs a command as an administrator of the server; gives its exit code and what it printed."""
    monkeypatch.setenv("SPRY_SERVER", address)
    monkeypatch.setenv("SPRY_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: object) -> SimpleNamespace:
        capsys.readouterr()
        code = cli.run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


@pytest.fixture
def ok(spry):
    """The same for a command that must succeed; gives what it printed."""

    def run(*args: object) -> str:
        done = spry(*args)
        assert done.code == 0, done.err
        return done.out

    return run


@pytest.fixture
def wrong(spry):
    """The same for a command that must fail with one line; gives the line."""

    def run(*args: object, code: int = 2) -> str:
        done = spry(*args)
        assert done.code == code, (done.code, done.out)
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        return done.err

    return run


@pytest.fixture
def job(ok, tiny, request) -> dict:
    """A job of the test's own."""
    return json.loads(ok("job", "create", request.node.name, "--bundle", tiny, *SETTINGS, "--json"))


@pytest.fixture
def taken_part(ok, address, job, tmp_path):
    """A device took part in the test's job, which has ended."""
    token = json.loads(ok("token", "create", "--json"))["token"]
    client = Client(address, token, ROWS, home=tmp_path / "home", job=job["name"], name="pi", holdout=0, threads=1)
    client.run(rounds=2)
    client.close()
    while json.loads(ok("job", "show", job["id"], "--json"))["state"] != "ended":
        time.sleep(0.05)
    return job["name"]

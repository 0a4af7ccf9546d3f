"""Readiness, apart from being alive."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from server.errors import Refusal
from server.settings import read_settings
from server.storage.files.shared import StoreAway
from server.storage.schema.tables import SCHEMA, about
from server.storage.store import Store
from server.web.readiness import Readiness


@pytest.fixture
def anew(monkeypatch):
    """Each request asks anew."""
    monkeypatch.setattr("server.web.readiness._EVERY", 0.0)


class Files:
    """A home of files that can be away, or hang."""

    name = "s3://fleet/spry"

    def __init__(self):
        self.away, self.asked = False, 0
        self.answers = threading.Event()
        self.answers.set()

    def below(self, folder):
        self.asked += 1
        self.answers.wait(300)
        if self.away:
            raise StoreAway(f"the files at {self.name} are out of reach: no route")
        return {}


@pytest.fixture
def files(server):
    server.store.shared = home = Files()
    yield home
    home.answers.set()
    server.store.shared = None


def test_a_server_that_stops_is_alive_and_not_ready(server):
    assert server.call("GET", "/readyz", headers={}).text == "ok\n"
    server.http.app.state.services.stopping.set()
    answer = server.call("GET", "/readyz", 503, headers={})
    assert "stopping" in answer.json()["detail"]
    assert int(answer.headers["Retry-After"]) > 0
    assert server.call("GET", "/healthz", headers={}).text == "ok\n"


def test_files_that_are_away_are_named_until_they_are_back(server, files, anew, caplog):
    files.away = True
    for _ in range(2):
        assert "s3://fleet/spry are out of reach" in server.call("GET", "/readyz", 503).json()["detail"]
    assert [record.levelname for record in caplog.records if "not ready" in record.message] == ["ERROR"]
    server.call("GET", "/healthz")
    files.away = False
    server.call("GET", "/readyz")


def test_who_asks_often_is_answered_from_what_was_heard_last(server, files):
    for _ in range(20):
        server.call("GET", "/readyz")
    assert files.asked == 1


def test_files_that_hang_take_one_thread_and_are_away_soon(server, files, anew, monkeypatch):
    readiness = Readiness(server.store, threading.Event())
    readiness.require()
    files.answers.clear()
    hanging = threading.Thread(target=readiness.require)
    hanging.start()
    while files.asked < 2:
        time.sleep(0.01)
    readiness.require()  # it may yet be in time
    monkeypatch.setattr("server.web.readiness._LATE", 0.0)
    with pytest.raises(Refusal, match="do not answer in time"):
        readiness.require()
    assert files.asked == 2
    files.answers.set()
    hanging.join()
    readiness.require()


@pytest.mark.parametrize(("schema", "status"), [(SCHEMA - 1, 503), (SCHEMA, 200), (SCHEMA + 1, 200)])
def test_the_tables_must_be_as_new_as_the_server(server, anew, schema, status):
    """Newer ones are those of a rolling upgrade: they have all that this server knows."""
    with server.store.database.write() as connection:
        connection.execute(update(about).where(about.c.key == "schema").values(value=str(schema)))
    server.call("GET", "/readyz", status)


def test_servers_that_meet_an_empty_database_at_once_make_its_tables_once(postgres, tmp_path):
    name = f"at_once_{abs(hash(tmp_path)):x}"
    postgres.psql(f"CREATE DATABASE {name}")
    url = postgres.get_uri(name)

    def start(number: int) -> int:
        values = {"database_url": url, "blob_store": "postgresql", "data_dir": tmp_path / str(number)}
        store = Store(read_settings(**values))
        try:
            return store.database.schema()
        finally:
            store.close()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(start, range(6))) == [SCHEMA] * 6

"""Test what `spry doctor` says of a server's data and certificate."""

import os
import resource

import pytest

from edge_client.commands.doctor.machine import Scope
from server.ops.checks import server
from server.storage.schema.tables import SCHEMA
from tests.test_journeys import certificates


def looked(**asked: object) -> dict:
    return {finding.name: finding for finding in server(Scope(**asked))}


def test_nothing_is_looked_at_where_there_is_no_server():
    assert looked() == {}


@pytest.fixture
def data(serving, bundle, tmp_path):
    """A folder with a job after a round."""
    with serving() as server:
        server.create_job(server.upload(bundle), per_round=1)
        server.advance()
        device = server.device()
        task = device.task()
        device.send(task, device.update(task))
        server.advance()
    return tmp_path / "data"


def test_a_servers_data(data, monkeypatch):
    (data / "admin-token").write_text("a-token-that-nobody-would-guess")
    (data / "admin-token").chmod(0o600)
    found = looked(data=data)
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["database"].found == f"SQLite, schema {SCHEMA}; jobs: 1, devices: 1"
    assert found["blobs"].found == "2 files, all there"
    (data / "admin-token").chmod(0o644)
    assert looked(data=data)["administrator's token"].advice == f"run: chmod 600 {data / 'admin-token'}"
    monkeypatch.setenv("SPRY_ADMIN_TOKEN", "a-token-that-nobody-would-guess")
    assert looked(data=data)["administrator's token"].state == "ok"


def test_files_that_are_gone(data):
    blob = next(path for path in (data / "blobs").rglob("*") if path.is_file())
    blob.unlink()
    tokenizer = next((data / "bundles").rglob("tokenizer.json"))
    tokenizer.write_bytes(tokenizer.read_bytes()[:-1])
    found = looked(data=data)
    assert found["blobs"].state == found["bundles"].state == "problem"
    assert blob.name in found["blobs"].found
    assert "tokenizer.json" in found["bundles"].found


def test_a_database_that_is_damaged(data):
    file = data / "spry.sqlite"
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)
    found = looked(data=data)["database"]
    assert (found.state, "spry restore" in found.advice) == ("problem", True)
    file.write_bytes(b"no database at all")
    assert looked(data=data)["database"].state == "problem"


def test_settings_that_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SPRY_RETRY_SECONDS", "-1")
    found = looked(data=tmp_path)
    assert list(found) == ["settings"]
    assert "SPRY_RETRY_SECONDS" in found["settings"].found


def test_a_database_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("SPRY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    found = looked(data=tmp_path)["database"]
    assert (found.state, "SPRY_DATABASE_URL" in found.found) == ("problem", True)


def test_few_open_files(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        found = looked(data=tmp_path)["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found.state, "ulimit" in found.advice) == ("warning", True)


def test_certificates(tmp_path):
    _, certificate, key = certificates(tmp_path)
    key.chmod(0o600)
    found = looked(tls_cert=certificate, tls_key=key)["certificate to show"]
    assert "valid for 2 days" in found.found
    key.chmod(0o644)
    assert "chmod 600" in looked(tls_cert=certificate, tls_key=key)["certificate to show"].advice
    key.chmod(0o600)
    other = tmp_path / "other"
    other.mkdir()
    _, strange, _ = certificates(other)
    for cert, of in ((strange, key), (tmp_path / "none.pem", key), (certificate, None)):
        assert looked(tls_cert=cert, tls_key=of)["certificate to show"].state == "problem"

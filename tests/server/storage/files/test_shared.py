"""Homes of files that servers share: PostgreSQL, and S3 as moto's server speaks it."""

import hashlib
import io
import os
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from server.errors import Refusal, ServerConfigError
from server.ops.backup import BackupError, back_up
from server.ops.checks import _kept
from server.settings import Settings, read_settings
from server.storage.files.shared import _PIECE, S3Blobs, StoreAway, open_store
from server.storage.schema.database import Database
from server.storage.store import Store
from tests.server.conftest import ADMIN
from tests.server.rounds.test_rounds import AVERAGE

KEY = "blobs/ab/abcdef"


@contextmanager
def speaking_s3(port=0):
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()
    finally:
        server.stop()


@pytest.fixture
def s3(monkeypatch):
    """A bucket of its own, and how to get there."""
    pytest.importorskip("obstore", reason="obstore (extra s3) is not installed")
    pytest.importorskip("moto.server", reason="moto, which speaks S3, is not installed")
    with speaking_s3() as (host, port):
        variables = {"ENDPOINT_URL": f"http://{host}:{port}", "ALLOW_HTTP": "true", "REGION": "us-east-1",
                     "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}  # fmt: skip
        for name, value in variables.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        httpx.post(f"http://{host}:{port}/moto-api/reset").raise_for_status()
        httpx.put(f"http://{host}:{port}/fleet").raise_for_status()
        yield "s3://fleet/spry"


@pytest.fixture(params=["postgresql", "s3"])
def shared(request, postgres, tmp_path):
    """Settings of servers with one database and one home of files, and no folder in common."""
    name = f"shared_{abs(hash(tmp_path)):x}"
    postgres.psql(f"CREATE DATABASE {name}")
    home = request.getfixturevalue("s3") if request.param == "s3" else request.param
    return {"database_url": postgres.get_uri(name), "blob_store": home}


@pytest.fixture
def at_once(monkeypatch):
    """An object store that is away is told of at the first try."""
    monkeypatch.setattr("server.storage.files.shared._S3_TRIES", 0)


@pytest.fixture
def home(shared, tmp_path):
    (tmp_path / "of-the-home").mkdir()
    database = Database(read_settings(database_url=shared["database_url"]).database_url, tmp_path / "of-the-home")
    yield open_store(shared["blob_store"], database)
    database.close()


@pytest.fixture
def replicas(shared, serving, tmp_path):
    """Starts servers, each with a data folder of its own."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(serving(tmp_path / name, **shared))


def upload(server, folder):
    """Every file by its own request, the manifest first, as `spry job create` sends them."""
    name = hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()
    paths = [file.path for file in manifests.read(folder / FILE_NAME).files]
    for path in (FILE_NAME, *paths):
        server.call("PUT", f"/v1/bundles/{name}/{path}", 204, content=(folder / path).read_bytes())
    return name


@pytest.mark.parametrize("size", [0, 1, _PIECE, 3 * _PIECE + 1], ids=["empty", "a byte", "a piece", "pieces"])
def test_a_file_comes_back_as_it_was(home, size):
    content = os.urandom(size)
    home.put(KEY, io.BytesIO(content))
    target = io.BytesIO()
    assert home.has(KEY)
    assert home.fetch(KEY, target)
    assert target.getvalue() == content
    assert {key: one.bytes for key, one in home.below("blobs").items()} == {KEY: size}


def test_a_file_that_is_put_again_is_the_newer_one_and_one_that_is_deleted_is_gone(home):
    home.put(KEY, io.BytesIO(b"the older and longer one" * _PIECE))
    home.put(KEY, io.BytesIO(b"newer"))
    target = io.BytesIO()
    assert home.fetch(KEY, target)
    assert target.getvalue() == b"newer"
    for _ in range(2):
        home.delete(KEY)
        assert not home.has(KEY)
        assert not home.fetch(KEY, io.BytesIO())
    assert home.below("blobs") == {}


def test_only_what_lies_in_a_folder_is_listed(home):
    for key in ("bundles/aa/manifest.json", "bundles/ab/x_y", "bundles/a_b/x", "bundles-too/x"):
        home.put(key, io.BytesIO(b"x"))
    assert home.below("bundles/a_b").keys() == {"bundles/a_b/x"}
    assert home.below("bundles").keys() == {"bundles/aa/manifest.json", "bundles/ab/x_y", "bundles/a_b/x"}
    assert all(one.changed > 1e9 for one in home.below("bundles").values())


def test_a_round_goes_through_servers_without_a_folder_in_common(replicas, bundle, tmp_path):
    """Each step by another server: upload, job, updates, the close, the download."""
    first, second = replicas("first"), replicas("second")
    name = upload(first, bundle)
    assert name in [one["sha256"] for one in second.call("GET", "/v1/bundles").json()]
    assert second.call("GET", f"/v1/bundles/{name}/missing").json() == []
    second.create_job(name, per_round=2, over_selection=1, rounds=2, optimizers=AVERAGE)
    second.advance()
    devices = [first.device(str(number)) for number in range(2)]
    for _ in range(2):
        for device in devices:
            device.server = second  # where the round was opened: others look for rounds a moment later
        work = [device.task() for device in devices]
        for device, task, server in zip(devices, work, (first, second), strict=True):
            content = device.update(task)
            device.server = server
            device.send(task, content)
        second.advance()
    third = replicas("third")
    adapters = {server.call("GET", "/v1/jobs/job/adapter").content for server in (first, second, third)}
    assert len(adapters) == 1
    assert third.job()["version"] == 2
    manifest = third.call("GET", f"/v1/bundles/{name}/{FILE_NAME}").content
    assert manifest == (bundle / FILE_NAME).read_bytes()
    programs = third.store.bundles.manifest(name).files
    for file in programs[:3]:
        assert third.call("GET", f"/v1/bundles/{name}/{file.path}").content == (bundle / file.path).read_bytes()


def test_updates_of_a_round_that_is_over_go_from_the_home_too(replicas, bundle):
    server = replicas("one")
    server.create_job(upload(server, bundle), per_round=1, over_selection=1, rounds=2, optimizers=AVERAGE)
    server.advance()
    device = server.device()
    task = device.task()
    device.send(task, device.update(task))
    before = server.store.shared.below("blobs")
    assert len(before) == 1
    server.advance()
    assert not before.keys() & server.store.shared.below("blobs").keys()
    assert server.job()["version"] == 1


def test_a_copy_that_nobody_reads_goes_and_comes_again(replicas):
    blobs = replicas("one").store.blobs
    sha = blobs.put(b"weights")
    path = blobs.path(sha)
    blobs.forget_partials(60)
    assert path.is_file()
    os.utime(path, (1, 1))
    blobs.forget_partials(60)
    assert not path.exists()
    assert blobs.whole(sha).read_bytes() == b"weights"


def test_a_copy_that_is_lent_stays_until_it_is_given_back(replicas):
    blobs = replicas("one").store.blobs
    sha = blobs.put(b"rows")
    with blobs.lent(sha) as file:
        os.utime(file, (1, 1))
        blobs.forget_partials(60)
        assert not blobs.path(sha).exists()
        assert file.read_bytes() == b"rows"
    assert not file.parent.exists()


def test_a_copy_that_the_disk_spoilt_is_fetched_again(replicas):
    blobs = replicas("one").store.blobs
    sha = blobs.put(b"weights")
    blobs.path(sha).write_bytes(b"weight?")
    assert blobs.whole(sha).read_bytes() == b"weights"


@pytest.mark.parametrize("loss", ["lost", "altered"])
def test_what_the_home_lost_or_altered_is_never_taken(replicas, loss):
    one, other = replicas("one").store, replicas("other").store
    sha = one.blobs.put(b"weights")
    key = one.blobs.key(sha)
    one.shared.delete(key)
    if loss == "altered":
        one.shared.put(key, io.BytesIO(b"others"))
    with pytest.raises(Refusal, match="missing or damaged"):
        other.blobs.whole(sha)
    assert not other.blobs.path(sha).exists()


def test_a_program_that_the_home_altered_is_never_handed_out(replicas, bundle):
    first, second = replicas("first"), replicas("second")
    name = upload(first, bundle)
    path = first.store.bundles.manifest(name).files[0].path
    first.store.shared.put(f"bundles/{name}/{path}", io.BytesIO(b"of somebody else"))
    second.call("GET", f"/v1/bundles/{name}/{path}", 404)
    assert path in second.call("GET", f"/v1/bundles/{name}/missing").json()


def test_servers_that_keep_the_same_file_at_once_keep_it_once(home, postgres):
    from concurrent.futures import ThreadPoolExecutor

    content = os.urandom(2 * _PIECE + 5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: home.put(KEY, io.BytesIO(content)), range(8)))
    target = io.BytesIO()
    assert home.fetch(KEY, target)
    assert target.getvalue() == content


def test_an_update_that_the_home_does_not_take_is_sent_again(s3, at_once, serving, bundle, tmp_path):
    """Its device hears that the server is busy; when the home is back the same update is accepted, and counts once."""
    with serving(tmp_path / "data", blob_store=s3) as server:
        server.create_job(upload(server, bundle), per_round=1, over_selection=1, rounds=1, optimizers=AVERAGE)
        server.advance()
        device = server.device()
        task = device.task()
        content = device.update(task)
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        for key in server.store.shared.below("bundles"):
            server.store.shared.delete(key)
        httpx.delete(f"{endpoint}/fleet").raise_for_status()
        answer = device.call("PUT", f"/v1/tasks/{task['id']}/update", 503, content=content)
        assert answer.json()["code"] == "busy"
        assert int(answer.headers["Retry-After"]) > 0
        assert server.job()["state"] == "running"
        httpx.put(f"{endpoint}/fleet").raise_for_status()
        assert not device.send(task, content)["repeated"]
        assert device.send(task, content)["repeated"]
        server.advance()
        assert server.job()["version"] == 1


def test_a_home_that_is_away_is_told_in_a_line(s3, at_once, tmp_path):
    store = Store(Settings(data_dir=tmp_path / "data", admin_token=ADMIN, blob_store=s3))
    try:
        httpx.delete(f"{os.environ['AWS_ENDPOINT_URL']}/fleet").raise_for_status()
        with pytest.raises(StoreAway, match="the files at s3://fleet/spry are out of reach"):
            store.blobs.put(b"weights")
    finally:
        store.close()


class Refusing(BaseHTTPRequestHandler):
    """A bucket that lists its files and gives and takes none, as where a key's rights were cut."""

    def do_GET(self):
        listing = "list-type" in self.path
        body = b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>" if listing else DENIED
        self.send_response(200 if listing else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        pass


DENIED = b"<Error><Code>AccessDenied</Code>\n<Message>Access Denied</Message></Error>"


@pytest.mark.parametrize("asked", ["put", "fetch"])
def test_a_bucket_that_refuses_is_told_in_a_line(s3, at_once, monkeypatch, asked):
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as door:
        threading.Thread(target=door.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{door.server_address[1]}")
        with pytest.raises(StoreAway, match=r"the files at s3://fleet/spry are out of reach: .*403") as told:
            getattr(S3Blobs(s3), asked)(KEY, io.BytesIO())
        assert "\n" not in str(told.value)
        door.shutdown()


@pytest.mark.parametrize("name", ["folder", "s3://", "s3:fleet", "gs://fleet/spry", "postgresql://elsewhere"])
def test_other_homes_are_refused(name):
    with pytest.raises(ServerConfigError, match="SPRY_BLOB_STORE: must be postgresql or s3://BUCKET/FOLDER"):
        read_settings(blob_store=name)


def test_a_home_that_cannot_be_used_is_told_at_the_start(tmp_path, s3, at_once):
    with pytest.raises(ServerConfigError, match="SPRY_BLOB_STORE=postgresql needs SPRY_DATABASE_URL=postgresql"):
        Store(Settings(data_dir=tmp_path / "a", admin_token=ADMIN, blob_store="postgresql"))
    with pytest.raises(ServerConfigError, match="SPRY_BLOB_STORE=s3://nowhere cannot be used"):
        Store(Settings(data_dir=tmp_path / "b", admin_token=ADMIN, blob_store="s3://nowhere"))


def test_the_doctor_looks_through_the_home_and_a_backup_says_where_files_are(replicas, shared, bundle, tmp_path):
    server = replicas("one")
    name = upload(server, bundle)
    server.create_job(name, per_round=1, over_selection=1)
    settings = Settings(data_dir=tmp_path / "other", admin_token=ADMIN, **shared)
    (tmp_path / "other").mkdir()
    found = {one.name: one for one in _kept(tmp_path / "other", settings)}
    assert (found["bundles"].state, found["blobs"].state) == ("ok", "ok")
    server.store.shared.delete(f"bundles/{name}/{FILE_NAME}")
    found = {one.name: one for one in _kept(tmp_path / "other", settings)}
    assert found["bundles"].state == "problem"
    assert f"1 of 1 are missing in {shared['blob_store']}" in found["bundles"].found
    with pytest.raises(BackupError, match="this server's files are in"):
        back_up(settings, tmp_path / "backup.tar", lambda *_: None)

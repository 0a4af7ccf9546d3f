"""Against a real HTTP server that answers, stumbles and cuts connections as told."""

import hashlib
import http.server
import json
import re
import ssl
import subprocess
import threading
import time
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest

from edge_client import manifest as manifests
from edge_client.addresses import travels_open
from edge_client.answers import retry_after
from edge_client.download import PARTIAL, fetch
from edge_client.errors import BadAnswer, BundleError, ServerError, SpryError, StoreError, Unauthorized, Unreachable
from edge_client.manifest import FILE_NAME
from edge_client.protocol import CheckedIn, CheckIn, Enrolled, Enrolment
from edge_client.transport import LONGEST_PAUSE, Server


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers from the server's script, and files of its bundle with Range."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.server.seen.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        if self.path.startswith("/v1/bundles/") and self.server.folder is not None:
            self.file()
            return
        status, headers, body = self.server.script.pop(0) if self.server.script else (204, {}, b"")
        if status == 0:
            self.close_connection = True
            return
        self.send(status, {"Content-Type": "application/json"} | headers, body)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 -- the base class calls them so

    def file(self):
        data = (self.server.folder / self.path.split("/", 4)[4]).read_bytes()
        start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        if start >= len(data) > 0:
            self.send(416, {}, b"")
            return
        headers = {}
        if "Range" in self.headers and self.server.ranges:
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            data = data[start:]
        cut = self.server.cuts.pop(0) if self.server.cuts and FILE_NAME not in self.path else None
        self.send(206 if headers else 200, headers, data, cut)

    def send(self, status, headers, body, cut=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_):
        pass


class Stage(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path | None = None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.script, self.seen, self.cuts, self.ranges = [], [], [], True
        self.pauses, self.told = [], []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def problem(self, status: int, code: str = "", detail: str = "no", **headers) -> None:
        body = json.dumps({"title": "t", "status": status, "detail": detail, "code": code}).encode()
        self.script.append((status, {"Content-Type": "application/problem+json", **headers}, body))

    def answer(self, value, status: int = 200, **headers) -> None:
        self.script.append((status, headers, value if isinstance(value, bytes) else json.dumps(value).encode()))

    def device(self, **options) -> Server:
        options = {"pause": self.pauses.append, "tell": self.told.append, "patience": 3000} | options
        return Server(options.pop("url", self.address), **options)


@pytest.fixture
def stage():
    with Stage() as stage:
        thread = threading.Thread(target=stage.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stage
        stage.shutdown()
        thread.join()


# --- messages ---


def test_a_device_shows_who_it_is(stage):
    stage.answer({"device": "d", "secret": "s"})
    stage.answer({"wait": 3.5, "reason": "later", "new_field": 1})
    with stage.device() as server:
        server.identity = server.enrol(Enrolment("token", "pi"))
        assert server.identity == Enrolled("d", "s")
        assert server.check_in(CheckIn(["onnx"])) == CheckedIn(None, 3.5, "later")
    (_, _, first, body), (_, path, second, _) = stage.seen
    assert "Authorization" not in first
    assert json.loads(body)["token"] == "token"
    assert second["Authorization"] == "Bearer d.s"
    assert path == "/v1/check-in"


def test_weights_and_steps(stage):
    stage.answer(b"tensors", **{"X-Spry-Version": "7", "Content-Type": "application/vnd.safetensors"})
    stage.answer(b"", 204)
    stage.answer(b"records", **{"Content-Type": "application/vnd.spry.steps"})
    stage.answer(b"tensors", **{"X-Spry-Version": "9", "Content-Type": "application/vnd.safetensors"})
    stage.answer(b"", 204)
    stage.answer(b"tensors")
    with stage.device() as server:
        assert server.weights("a/b", 3).version == 7
        assert server.weights("j", 7) is None
        assert server.steps("j", 7, wait=0.5) == b"records"
        assert server.steps("j", 7).version == 9
        assert server.steps("j", 9) == b""
        with pytest.raises(BadAnswer, match="X-Spry-Version"):
            server.weights("j", 0)
    assert stage.seen[0][1] == "/v1/jobs/a%2Fb/weights?since=3"
    assert stage.seen[2][1] == "/v1/jobs/j/steps?since=7&wait=0.5"


def test_what_a_task_sends(stage):
    for _ in range(3):
        stage.answer({"wait": 1.0})
    with stage.device() as server:
        server.send_update("t", b"update")
        server.send_jvps("t", 4, b"jvps")
        server.send_failure("t", "x" * 900)
    assert [(method, path) for method, path, *_ in stage.seen] == [
        ("PUT", "/v1/tasks/t/update"), ("PUT", "/v1/tasks/t/jvps/4"), ("POST", "/v1/tasks/t/failure"),
    ]  # fmt: skip
    assert stage.seen[0][3] == b"update"
    assert len(json.loads(stage.seen[2][3])["reason"]) == 500


# --- refusals ---


@pytest.mark.parametrize(
    ("status", "code"), [(409, "stale"), (409, "late"), (422, "norm"), (413, "too-large"), (403, "foreign")]
)
def test_a_refusal_is_not_repeated(stage, status, code):
    stage.problem(status, code, "the round is over: check in")
    with stage.device() as server, pytest.raises(ServerError, match="the round is over: check in") as caught:
        server.send_update("t", b"")
    assert (caught.value.status, caught.value.code) == (status, code)
    assert len(stage.seen) == 1


def test_a_revoked_device(stage):
    stage.problem(401, "unauthorized", "the device was revoked")
    with stage.device() as server, pytest.raises(Unauthorized, match="revoked"):
        server.check_in(CheckIn([]))


def test_an_address_that_is_no_server_of_ours(stage):
    stage.answer(b"<html>", 404)
    stage.answer(b"<html>")
    stage.answer(b"", 302, Location="http://elsewhere.example/")
    with stage.device() as server:
        with pytest.raises(ServerError, match="answers 404 Not Found; check --server"):
            server.check_in(CheckIn([]))
        with pytest.raises(BadAnswer, match="no answer of this version of spry"):
            server.check_in(CheckIn([]))
        with pytest.raises(ServerError, match="answers 302"):
            server.check_in(CheckIn([]))


# --- repeating ---


def test_errors_are_repeated_with_pauses_that_grow_and_vary(stage):
    stage.script += [(0, {}, b"")] * 3
    for _ in range(4):
        stage.problem(503, "busy")
    stage.answer({"wait": 1.0})
    with stage.device() as server:
        assert server.check_in(CheckIn([])).wait == 1.0
    bounds = [0.5 * 2**i for i in range(7)]
    assert all(bound / 4 <= pause <= bound for pause, bound in zip(stage.pauses, bounds, strict=True))
    assert [event.kind for event in stage.told] == ["unreachable", "reachable"]


def test_the_server_says_when(stage):
    stage.problem(429, "busy", **{"Retry-After": "7"})
    stage.problem(503, "busy", **{"Retry-After": "999999"})
    stage.answer({})
    with stage.device() as server:
        server.check_in(CheckIn([]))
    assert 7 <= stage.pauses[0] <= 7 * 1.25
    assert LONGEST_PAUSE <= stage.pauses[1] <= LONGEST_PAUSE * 1.25


def test_retry_after_as_a_date():
    assert retry_after(formatdate(time.time() + 90, usegmt=True)) == pytest.approx(90, abs=2)
    assert retry_after(formatdate(0)) == 0
    assert retry_after("soon") is None
    assert retry_after(None) is None
    assert retry_after("-4") == 0


def test_patience_ends(stage):
    address = stage.address
    stage.script += [(0, {}, b"")] * 100
    with stage.device(url=address, patience=0.2) as server, pytest.raises(Unreachable, match="gives no answer"):
        server.check_in(CheckIn([]))


def test_a_server_that_is_not_there():
    with Server("http://127.0.0.1:9", patience=0, pause=lambda _: None) as server, pytest.raises(Unreachable):
        server.check_in(CheckIn([]))


def test_an_answer_without_end_is_cut(stage):
    stage.answer(b" " * (2 << 20))
    with stage.device() as server, pytest.raises(BadAnswer, match="more than 1,048,576 bytes"):
        server.check_in(CheckIn([]))


# --- addresses and certificates ---


@pytest.mark.parametrize("url", ["spry.example.org", "ftp://a", "https://", "", "http://[::1"])
def test_what_is_no_address(url):
    with pytest.raises(SpryError, match="is no address"):
        Server(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.1", True), ("http://spry.lan:8000", True), ("https://spry.lan", False),
        ("http://127.0.0.1:8000", False), ("http://localhost", False), ("http://[::1]:80", False),
    ],
)  # fmt: skip
def test_secrets_in_the_open_are_warned_of_once(url, expected):
    told = []
    with Server(url, tell=told.append) as server:
        server.warn_if_open()
    assert travels_open(url) == expected
    assert [event.kind for event in told] == ["warning"] * expected


def test_certificates(tmp_path, stage):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Stage() as secure:
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        secure.handle_error = lambda *_: None
        thread = threading.Thread(target=secure.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = secure.address.replace("http:", "https:")
        with secure.device(url=url) as server, pytest.raises(ServerError, match="does not trust"):
            server.check_in(CheckIn([]))
        secure.answer({"wait": 2.0})
        with secure.device(url=url, ca=certificate) as server:
            assert server.check_in(CheckIn([])).wait == 2.0
        secure.shutdown()
        thread.join()
    for wrong in (tmp_path / "none.pem", key):
        with pytest.raises(SpryError, match="cannot be read as certificates"):
            Server(url, ca=wrong)


# --- bundles ---


@pytest.fixture
def serving(stage, trainable):
    stage.folder = trainable
    return stage, hashlib.sha256((trainable / FILE_NAME).read_bytes()).hexdigest()


def requests(stage) -> list[tuple[str, str | None]]:
    return [(path.split("/", 4)[4], headers.get("Range")) for _, path, headers, _ in stage.seen]


def test_a_bundle_is_fetched_once(serving, tmp_path):
    stage, name = serving
    with stage.device() as server:
        bundle = fetch(server, name, "onnx", tmp_path / "b", tell=stage.told.append)
        assert {path for path, _ in requests(stage)} == {FILE_NAME, *(file.path for file in bundle.manifest.files)}
        bundle.open(bundle.folder, verify="onnx")
        stage.seen.clear()
        fetch(server, name, "onnx", tmp_path / "b")
    assert stage.seen == []
    assert stage.told[-1].details["bytes"] == bundle.bytes


def test_a_download_goes_on_where_it_was_cut(serving, tmp_path):
    stage, name = serving
    stage.cuts = [0, 100, 1, 1000]
    with stage.device() as server:
        bundle = fetch(server, name, "onnx", tmp_path / "b")
    bundle.open(bundle.folder, verify="onnx")
    asked = [wanted for _, wanted in requests(stage) if wanted]
    assert asked == ["bytes=100-", "bytes=101-", "bytes=1101-"]
    assert not list(bundle.folder.rglob("*" + PARTIAL))


def test_what_an_interrupted_client_had_is_kept(serving, tmp_path):
    stage, name = serving
    stage.cuts = [None, 300]

    def stop(_):
        raise KeyboardInterrupt

    with stage.device(pause=stop) as server, pytest.raises(KeyboardInterrupt):
        fetch(server, name, "onnx", tmp_path / "b")
    (partial,) = (tmp_path / "b").rglob("*" + PARTIAL)
    assert partial.stat().st_size == 300
    stage.seen.clear()
    with stage.device() as server:
        fetch(server, name, "onnx", tmp_path / "b")
    assert (partial.name.removesuffix(PARTIAL), "bytes=300-") in [(p.split("/")[-1], r) for p, r in requests(stage)]


def test_a_server_without_ranges(serving, tmp_path):
    stage, name = serving
    stage.ranges = False
    stage.cuts = [200, 300]
    with stage.device() as server:
        bundle = fetch(server, name, "onnx", tmp_path / "b")
    bundle.open(bundle.folder, verify="onnx")


def test_a_damaged_partial_file_is_fetched_again(serving, tmp_path):
    stage, name = serving
    manifest = manifests.read(stage.folder / FILE_NAME)
    big = max(manifest.files, key=lambda file: file.bytes)
    for size in (big.bytes // 2, big.bytes, big.bytes + 5):
        folder = tmp_path / str(size)
        partial = folder / (big.path + PARTIAL)
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"x" * size)
        with stage.device() as server:
            bundle = fetch(server, name, "onnx", folder)
        bundle.open(folder, verify="onnx")


def test_files_that_are_not_what_the_manifest_says(serving, tmp_path, trainable):
    stage, name = serving
    other = tmp_path / "server"
    for file in [FILE_NAME, *(f.path for f in manifests.read(trainable / FILE_NAME).files)]:
        (other / file).parent.mkdir(parents=True, exist_ok=True)
        (other / file).write_bytes((trainable / file).read_bytes())
    stage.folder = other
    first = manifests.read(trainable / FILE_NAME).files[0]
    (other / first.path).write_bytes(b"y" * first.bytes)
    with stage.device() as server:
        with pytest.raises(BundleError, match=f"gives a damaged {re.escape(first.path)}"):
            fetch(server, name, "onnx", tmp_path / "b")
        (other / first.path).write_bytes(b"y" * (first.bytes + 1))
        with pytest.raises(BadAnswer, match="longer than the manifest says"):
            fetch(server, name, "onnx", tmp_path / "b")
        (other / FILE_NAME).write_bytes(b"{}")
        with pytest.raises(BadAnswer, match="another manifest"):
            fetch(server, name, "onnx", tmp_path / "c")
        assert not (tmp_path / "c" / FILE_NAME).exists()


def test_a_bundle_without_the_runtime(serving, tmp_path):
    stage, name = serving
    with stage.device() as server, pytest.raises(BundleError, match="no programs for executorch; it has onnx"):
        fetch(server, name, "executorch", tmp_path / "b")


def test_a_full_disk(serving, tmp_path, monkeypatch):
    stage, name = serving
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with stage.device() as server, pytest.raises(StoreError, match=r"0.0 MB are free; make room"):
        fetch(server, name, "onnx", tmp_path / "b")


def test_a_disk_that_fills_up_keeps_what_came(serving, tmp_path, monkeypatch):
    stage, name = serving
    real = httpx.Response.iter_bytes

    def full(self, size=None):
        for number, part in enumerate(real(self, 64)):
            if number == 2 and "onnx" in str(self.url):
                raise OSError(28, "No space left on device")
            yield part

    with monkeypatch.context() as patch, stage.device() as server:
        patch.setattr(httpx.Response, "iter_bytes", full)
        with pytest.raises(StoreError, match="what was downloaded is kept"):
            fetch(server, name, "onnx", tmp_path / "b")
    assert [path.stat().st_size for path in (tmp_path / "b").rglob("*" + PARTIAL)] == [128]
    with stage.device() as server:
        fetch(server, name, "onnx", tmp_path / "b")

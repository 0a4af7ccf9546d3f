"""Messages to a real HTTP server that answers and stumbles as told."""

import json
import ssl
import subprocess
import threading
import time
from email.utils import formatdate

import pytest

from edge_client.errors import BadAnswer, ServerError, SpryError, Unauthorized, Unreachable
from edge_client.wire.addresses import travels_open
from edge_client.wire.answers import retry_after
from edge_client.wire.protocol import CheckedIn, CheckIn, Enrolled, Enrolment
from edge_client.wire.server import LONGEST_ASKED, Server
from tests.edge_client.stage import Stage

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
        assert server.weights("a/b", 3, 100).version == 7
        assert server.weights("j", 7, 100) is None
        assert server.steps("j", 7, 100, wait=0.5) == b"records"
        assert server.steps("j", 7, 100).version == 9
        assert server.steps("j", 9, 100) == b""
        with pytest.raises(BadAnswer, match="X-Spry-Version"):
            server.weights("j", 0, 100)
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
    assert LONGEST_ASKED <= stage.pauses[1] <= LONGEST_ASKED * 1.25


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

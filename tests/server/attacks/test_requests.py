"""Test what strangers, devices and the wrong devices send to do harm: no answer is the server's own failure."""

import json
from itertools import product
from urllib.parse import quote

import pytest
from safetensors.numpy import load, save

from tests.server.conftest import encode

TEXTS = (
    "\0", "a\0b", "\x1b[31mred", "\x1b]0;owned\x07", "two\r\nlines", "\u202egpj.exe", "\ud800", "\x7f", "\x9b31m",
    "\u2028", "", "x" * 101, "x" * 5000, "'; DROP TABLE devices;--", "../../etc/passwd", "%00", "{}",
    "\N{GRINNING FACE}" * 100,
)  # fmt: skip
NUMBERS = ("-1", "0", "1e999", "-1e999", "NaN", "Infinity", str(2**63), str(2**70), "9" * 5000, "1.5", "true", '"1"')
DEEP = 100_000
BODIES = (
    b"", b"null", b"[]", b"{}", b"0", b'"text"', b"\xff\xfe\x00", b"{", b'{"a":', b"\xef\xbb\xbf{}",
    "{}".encode("utf-16"), "{}".encode("utf-32"), b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP,
    b"[0," * 1000, b"[" + b"{}," * 200_000, b'{"a":"' + b"x" * 900_000 + b'"}', b'{"a":"' + b'\\"' * 400_000,
    b'"' + b"[" * 300_000 + b'"', b"1" * 900_000,
    b'{"name":"\\u0000"}', b'{"\\u0000":1}', b'{"token":"\\ud800","name":"x"}', b"x" * 3_000_000,
)  # fmt: skip
TYPE = {"Content-Type": "application/json"}


def sent_as(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def paths(task: str):
    """Each address with each text in its place, and what is read from queries."""
    places = (
        "/v1/jobs/{}", "/v1/jobs/{}/rounds", "/v1/jobs/{}/weights", "/v1/jobs/{}/steps?since=0", "/v1/jobs/{}/adapter",
        "/v1/bundles/{}/manifest.json", f"/v1/bundles/{'0' * 64}/{{}}", "/{}", "/dashboard/{}", "/docs/assets/{}",
        "/guide/{}",
    )  # fmt: skip
    yield from (("GET", place.format(sent_as(text))) for place, text in product(places, TEXTS))
    asked = ("/v1/jobs/job/weights?since={}", "/v1/jobs/job/steps?since=0&wait={}", "/v1/audit?limit={}")
    yield from (("GET", place.format(value)) for place, value in product(asked, (*NUMBERS, "%00", "%ff")))
    for text in TEXTS:
        yield "DELETE", f"/v1/devices/{sent_as(text)}"
        yield "DELETE", f"/v1/tokens/{sent_as(text)}"
        yield "PUT", f"/v1/tasks/{sent_as(text)}/update"
        yield "PUT", f"/v1/held-out/{sent_as(text)}"
    yield from (("PUT", f"/v1/tasks/{task}/jvps/{number}") for number in NUMBERS if number.isprintable())


def messages(task: str):
    routes = (
        "/v1/devices", "/v1/check-in", f"/v1/tasks/{task}/failure", "/v1/tokens", "/v1/jobs", "/v1/jobs/update/stop",
    )  # fmt: skip
    yield from (("POST", route, body) for route, body in product(routes, BODIES))
    for text in TEXTS:
        yield "POST", "/v1/devices", json.dumps({"token": text, "name": text, "version": text}).encode()
        yield "POST", "/v1/check-in", json.dumps({"runtimes": [text], "job": text}).encode()
        yield "POST", "/v1/tokens", json.dumps({"label": text}).encode()
        yield "POST", "/v1/jobs/nobody/stop", json.dumps({"reason": text}).encode()
        yield "POST", "/v1/jobs", json.dumps({"name": text, "bundle": "0" * 64}).encode()
    for number in NUMBERS:
        yield "POST", "/v1/check-in", f'{{"runtimes":["onnx"],"examples":{number},"memory_bytes":{number}}}'.encode()
        yield "POST", "/v1/tokens", f'{{"uses":{number},"seconds":{number}}}'.encode()


def updates(honest: bytes):
    tensors = load(honest)
    first = min(tensors)
    header = json.dumps({"a\0\x1b[31m": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    yield len(header).to_bytes(8, "little") + header + b"\0" * 4
    yield from (encode(tensors | {text or "x": tensors[first]}) for text in TEXTS if text.isascii())
    yield from (save(tensors, {"report": text}) for text in ("\0", "[" * 20_000, "{}", '{"examples":1e400}'))
    yield from (encode(tensors, examples=value) for value in (-1, 0, 2**63, 2**70, "\0", None))
    yield from (honest[:size] for size in (0, 1, 7, 8, 9, len(honest) - 1))
    yield honest + b"x" * 10_000_000


@pytest.fixture
def scene(serving, tiny, database):
    with serving(**database) as server:
        server.create_job(server.upload(tiny), per_round=4, over_selection=1)
        server.advance()
        yield server


def test_no_request_makes_the_server_fail(scene):
    server, statuses = scene, []
    victim, wrong = server.device("victim"), server.device("wrong")
    task = victim.task()
    honest = victim.update(task)

    def attack(headers, method, path, content=None):
        response = server.http.request(method, path, headers=headers, content=content)
        statuses.append(response.status_code)
        assert response.status_code < 500, (method, path[:80], (content or b"")[:80], response.text)

    for headers in ({}, wrong.headers):
        for method, path in paths(task["id"]):
            attack(headers, method, path)
    for headers in ({}, wrong.headers, server.admin):
        for method, path, body in messages(task["id"]):
            attack({**headers, **TYPE}, method, path, body)
    for headers in ({}, wrong.headers):
        for content in updates(honest):
            attack(headers, "PUT", f"/v1/tasks/{task['id']}/update", content)
    for bearer in ("", ".", "d-", "d-.", "d-\xff.\xff", "d-" + "0" * 5000 + ".x", f"{victim.id}.", "a b", "é"):
        attack({"Authorization": b"Bearer " + bearer.encode("latin-1")}, "POST", "/v1/check-in", b"{}")
        attack({"Authorization": b"Bearer " + bearer.encode("latin-1")}, "GET", "/v1/jobs")
    assert len(statuses) >= 600
    assert server.call("GET", "/healthz").text == "ok\n"
    assert victim.send(task, honest)["repeated"] is False


def test_what_devices_send_to_their_own_tasks(scene):
    honest = None
    for number in range(40):
        device = scene.device(f"hostile {number}")
        answer = device.check_in()
        if not answer["task"]:
            break
        task = answer["task"]
        honest = honest or device.update(task)
        attacks = list(updates(honest))
        if number >= len(attacks):
            break
        response = scene.http.put(f"/v1/tasks/{task['id']}/update", headers=device.headers, content=attacks[number])
        assert 400 <= response.status_code < 500, response.text
    assert number > 20
    for text in TEXTS:
        device = scene.device()
        task = device.check_in()["task"]
        if task:
            body = json.dumps({"reason": text})
            answered = scene.http.post(f"/v1/tasks/{task['id']}/failure", headers=device.headers | TYPE, content=body)
            assert answered.status_code < 500
    told = scene.call("GET", "/v1/jobs/job/refusals", params={"limit": 1000}).text
    assert "\\u0000" not in told
    assert "\\u001b" not in told

"""Devices that sign their requests: what is taken, and what is not."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest

from edge_client import keys
from edge_client.wire.proofs import SKEW, digest_of, enrolment, signed_text

HOUR = 3600


class Signer:
    """A device that signs as it is told."""

    def __init__(self, server):
        self.server, self.key = server, keys.make()
        wanted = asdict(enrolment(server.token(), "pi", "", self.key))
        self.enrolled = server.call("POST", "/v1/devices", 201, json=wanted).json()
        self.id = self.enrolled["device"]
        self.newest = 0

    def headers(self, method, path, body=b"", query="", late=0, key=None, signed=None):
        digest, moment = digest_of(body if signed is None else signed), int(1000 * (time.time() - late))
        if not late:
            self.newest = moment = max(moment, self.newest + 1)
        signature = keys.sign(key or self.key, signed_text(method, moment, digest, query, path))
        headers = {"Authorization": f"Spry {self.id}.{moment}.{keys.encoded(signature)}"}
        return headers | ({"Content-Digest": digest} if digest else {})

    def check_in(self, status=200, body=b'{"runtimes": ["onnx"]}', **changes):
        headers = {"Content-Type": "application/json"} | self.headers("POST", "/v1/check-in", body, **changes)
        return self.server.call("POST", "/v1/check-in", status, headers=headers, content=body).json()


@pytest.fixture
def signer(server):
    return Signer(server)


def test_a_device_with_a_key_has_no_secret(server, signer, tmp_path):
    assert signer.enrolled["secret"] == ""
    assert "wait" in signer.check_in()
    for bearer in (f"{signer.id}.", signer.id, f"{signer.id}.{keys.public_of(signer.key)}"):
        headers = {"Authorization": f"Bearer {bearer}"}
        server.call("POST", "/v1/check-in", 401, headers=headers, json={"runtimes": ["onnx"]})
    assert signer.key.encode() not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_old_clients_go_on_by_their_secret(server):
    assert "wait" in server.device().check_in()


def test_a_signature_is_for_one_request(server, signer):
    assert "unknown device or wrong key" in signer.check_in(401, key=keys.make())["detail"]
    job = "/v1/jobs/none/weights"
    server.call("GET", job, 404, headers=signer.headers("GET", job, query="since=3"), params={"since": 3})
    server.call("GET", job, 401, headers=signer.headers("GET", job, query="since=3"), params={"since": 4})
    server.call("GET", "/v1/jobs/another/weights", 401, headers=signer.headers("GET", job))
    server.call("PUT", "/v1/tasks/t/update", 401, headers=signer.headers("GET", "/v1/tasks/t/update"))


def test_a_body_is_the_one_that_was_signed(server, signer):
    assert "the body is not the one" in signer.check_in(401, signed=b'{"runtimes": []}')["detail"]
    assert "the body is not the one" in signer.check_in(401, signed=b"")["detail"]


@pytest.mark.parametrize(("what", "path"), [("update", "update"), ("scalars", "jvps/0"), ("failure", "failure")])
def test_so_is_what_a_task_sends(server, bundle, what, path):
    server.create_job(server.upload(bundle), training={"mode": "iteration" if what == "scalars" else "epoch"})
    signer = Signer(server)
    server.advance()
    task = signer.check_in()["task"]
    path, method = f"/v1/tasks/{task['id']}/{path}", "POST" if what == "failure" else "PUT"
    body = b'{"reason": "no"}'
    types = {"Content-Type": "application/json" if what == "failure" else "application/octet-stream"}
    forged = types | signer.headers(method, path, body, signed=b'{"reason": "on"}')
    answer = server.call(method, path, 401, headers=forged, content=body).json()
    assert "the body is not the one that the device signed" in answer["detail"]
    honest = types | signer.headers(method, path, body)
    server.call(method, path, 200 if what == "failure" else 422, headers=honest, content=body)


@pytest.mark.parametrize("late", [SKEW + HOUR, -SKEW - HOUR])
def test_old_signatures_are_not_taken_again(signer, late):
    said = signer.check_in(401, late=late)["detail"]
    assert "set its clock, which may differ by 300 seconds" in said
    assert f"{time.time():.0f}"[:-2] in said


def test_a_request_is_taken_once_by_all_workers_and_after_a_restart(serving, bundle, database):
    body, type_ = b'{"runtimes": ["onnx"]}', {"Content-Type": "application/json"}

    def send(server, kind, headers, status):
        if kind == "check-in":
            return server.call("POST", "/v1/check-in", status, headers=type_ | headers, content=body).json()
        return server.call("GET", kind, status, headers=headers)

    with serving(**database) as one, serving(**database) as other:
        file = f"/v1/bundles/{one.upload(bundle)}/manifest.json"
        signer = Signer(one)
        check_in, fetch = signer.headers("POST", "/v1/check-in", body), signer.headers("GET", file)
        older = signer.headers("GET", file, late=1)
        assert "wait" in send(one, "check-in", check_in, 200)
        send(other, file, fetch, 200)
        for server in (one, other):
            assert send(server, "check-in", check_in, 425)["code"] == "replayed"
            refused = send(server, file, fetch, 425).json()
            assert refused["detail"].endswith("so it may be a copy: sign it anew")
            send(server, file, older, 425)
            send(server, file, signer.headers("GET", file), 200)
    with serving(**database) as again:
        send(again, "check-in", check_in, 425)
        send(again, file, fetch, 425)
        send(again, file, signer.headers("GET", file), 200)


def test_of_copies_that_come_together_one_is_taken(serving, bundle, database):
    with serving(**database) as one, serving(**database) as other:
        file = f"/v1/bundles/{one.upload(bundle)}/manifest.json"
        signer = Signer(one)
        assert other.http.get("/healthz").status_code == 200  # routes are built by the first request, not by threads
        for _ in range(5):
            headers = signer.headers("GET", file)
            with ThreadPoolExecutor(8) as pool:
                answers = pool.map(lambda n: (one, other)[n % 2].http.get(file, headers=headers), range(16))  # noqa: B023
                assert sorted(answer.status_code for answer in answers) == [200] + [425] * 15


def test_a_stranger_moves_no_devices_time(server, signer):
    future = {"late": -SKEW / 2, "key": keys.make()}
    assert "wrong key" in signer.check_in(401, **future)["detail"]
    assert "the body is not the one" in signer.check_in(401, signed=b"x", late=SKEW / 2)["detail"]
    assert "wait" in signer.check_in()


def test_a_revoked_device(server, signer):
    server.call("DELETE", f"/v1/devices/{signer.id}", 204)
    assert "this device was revoked" in signer.check_in(401)["detail"]


@pytest.mark.parametrize("proof", ["", "a", "d.1.", "d.1.x", "..", ".", "d-1.x.y", "d.²." + "A" * 86, "\xff.1.2"])
def test_nonsense_is_refused(server, signer, proof):
    for text in (proof, proof.replace("d.", f"{signer.id}.")):
        headers = {"Authorization": f"Spry {text}".encode("latin-1")}
        server.call("POST", "/v1/check-in", 401, headers=headers, json={"runtimes": ["onnx"]})


def test_a_key_that_is_none(server):
    wanted = {"token": server.token(), "name": "pi", "public_key": "nonsense"}
    assert "the device's public key is invalid" in server.call("POST", "/v1/devices", 422, json=wanted).json()["detail"]


def test_files_of_a_bundle_and_administrators_routes(server, signer, bundle):
    name = server.upload(bundle)
    path = f"/v1/bundles/{name}/manifest.json"
    fetched = server.call("GET", path, headers=signer.headers("GET", path)).content
    assert hashlib.sha256(fetched).hexdigest() == name
    server.call("GET", "/v1/jobs", 401, headers=signer.headers("GET", "/v1/jobs"))

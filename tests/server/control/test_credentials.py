"""Test who may do what, and how secrets are kept."""

import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from edge_client.errors import SpryError
from edge_client.keys import make
from edge_client.wire.proofs import device_key, enrolment
from server.app import create_app
from server.control.credentials import KEYS_A_DAY, digest, take_key
from server.errors import Refusal, ServerConfigError
from server.settings import Settings, read_settings
from server.storage.identities import devices
from server.storage.store import Store

OPEN = {("get", "/"), ("get", "/healthz"), ("get", "/readyz"), ("get", "/metrics"), ("post", "/v1/devices")}


def test_every_route_but_a_few_needs_a_secret(server):
    tried = 0
    for described, methods in server.http.app.openapi()["paths"].items():
        path = described.replace("{bundle}", "0" * 64).replace("{sha256}", "0" * 64).replace("{iteration}", "0")
        for name in ("job", "task", "token", "device", "path", "name"):
            path = path.replace(f"{{{name}}}", "x")
        for method in methods:
            if (method, path) in OPEN:
                continue
            for headers in ({}, {"Authorization": "Bearer d-0.wrong"}, {"Authorization": "Basic eDp5"}):
                response = server.http.request(method, path, headers=headers, json={})
                assert response.status_code == 401, (method, path, response.text)
                assert response.headers["content-type"] == "application/problem+json"
            tried += 1
    assert tried > 20


def test_a_device_is_no_administrator(server):
    device = server.device()
    for method, path in (("GET", "/v1/jobs"), ("GET", "/v1/devices"), ("POST", "/v1/tokens"), ("GET", "/v1/audit")):
        device.call(method, path, 401, json={})


def test_secrets_are_kept_as_hashes_only(server, tmp_path):
    token = server.token()
    enrolled = server.call("POST", "/v1/devices", 201, json={"token": token, "name": "pi"}).json()
    server.store.close()  # everything is in the file
    data = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("spry.sqlite*"))
    assert digest(enrolled["secret"]).encode() in data
    for secret in (token, enrolled["secret"]):
        assert secret.encode() not in data


def enrol(server, token, key, status=201, name="pi"):
    return server.call("POST", "/v1/devices", status, json=asdict(enrolment(token, name, "", key))).json()


@pytest.mark.parametrize("why", ["used up", "expired", "revoked", "unknown"])
def test_a_token_that_is_no_longer_good(server, why):
    made = server.call("POST", "/v1/tokens", 201, json={"uses": 1, "seconds": 10}).json()
    body = {"token": made["token"], "name": "pi"}
    match why:
        case "used up":
            server.call("POST", "/v1/devices", 201, json=body)
        case "expired":
            server.store.now = lambda now=server.store.now: now() + 11
        case "revoked":
            server.call("DELETE", f"/v1/tokens/{made['id']}", 204)
        case "unknown":
            body["token"] = "guessed"
    assert "spry token create" in server.call("POST", "/v1/devices", 401, json=body).json()["detail"]


def test_a_device_whose_answer_was_lost_enrols_again_with_the_same_use(server):
    """It was killed between the server's commit and its own: its key is the one that it made before it asked."""
    made = server.call("POST", "/v1/tokens", 201, json={"uses": 1, "seconds": 10}).json()
    key = make()
    first = enrol(server, made["token"], key)
    assert enrol(server, made["token"], key) == first
    assert len(server.call("GET", "/v1/devices", 200).json()) == 1
    enrol(server, made["token"], make(), 401)


def test_one_key_is_one_device_whatever_the_tokens(server):
    """A board that is set up anew keeps its key and is given another token: it is the device that it was."""
    key = make()
    made = server.call("POST", "/v1/tokens", 201, json={"label": "attic", "uses": 1}).json()
    first = enrol(server, server.token(), key, name="before")
    assert enrol(server, made["token"], key, name="after") == first
    (known,) = server.call("GET", "/v1/devices").json()
    assert (known["id"], known["name"]) == (first["device"], "after")
    enrol(server, made["token"], make(), 401)  # its use is gone
    assert enrol(server, made["token"], key) == first  # not for the device that had it
    enrol(server, "guessed", key, 401)


def test_a_device_that_was_revoked_comes_back_by_another_token_alone(server):
    key, token = make(), server.call("POST", "/v1/tokens", 201, json={"uses": 5}).json()["token"]
    first = enrol(server, token, key)
    server.call("DELETE", f"/v1/devices/{first['device']}", 204)
    enrol(server, token, key, 401)
    assert enrol(server, server.token(), key) == first
    (known,) = server.call("GET", "/v1/devices").json()
    assert not known["revoked"]


def test_a_key_is_proved_by_its_signature(server):
    """Whoever has seen another device's public key cannot enrol by it."""
    token, key = server.token(), make()
    body = asdict(enrolment(token, "pi", "", key))
    other = asdict(enrolment(server.token(), "pi", "", key))
    for proof in ("", "A" * 86, other["proof"], asdict(enrolment(token, "pi", "", make()))["proof"]):
        refused = server.call("POST", "/v1/devices", 422, json=body | {"proof": proof}).json()
        assert "without a proof" in refused["detail"]
    server.call("POST", "/v1/devices", 201, json=body)


def test_a_device_changes_its_key_with_a_proof_and_no_more_often_than_keys_wear_out(server):
    first, second = server.device(), server.device()
    own, others = make(), make()
    other = asdict(device_key(second.id, others))
    second.call("PUT", "/v1/device-key", json=other)
    first.call("PUT", "/v1/device-key", 422, json=other)  # proved for another device
    assert (
        "one key is one device"
        in first.call("PUT", "/v1/device-key", 409, json=asdict(device_key(first.id, others))).json()["detail"]
    )
    assert first.call("PUT", "/v1/device-key", json=asdict(device_key(first.id, own))).json()["secret"] == ""


def test_keys_of_a_day_are_counted_in_the_database(server):
    device = server.store.database
    enrolled = enrol(server, server.token(), make())
    with device.read() as connection:
        known = devices.find(connection, enrolled["device"])
    for _ in range(KEYS_A_DAY):
        key = make()
        take_key(server.store, known, device_key(known.id, key))
    take_key(server.store, known, device_key(known.id, key))  # it has that already
    with pytest.raises(Refusal, match="changed its key") as refused:
        take_key(server.store, known, device_key(known.id, make()))
    assert refused.value.status == 429
    assert 86_000 < refused.value.retry_after <= 86_400
    server.store.now = lambda now=server.store.now: now() + 86_401
    take_key(server.store, known, device_key(known.id, make()))


def test_enrolment_is_limited_for_each_address(serving):
    with serving(enrolments_per_minute=3) as server:
        for _ in range(3):
            server.call("POST", "/v1/devices", 401, json={"token": "guess", "name": "x"})
        refused = server.call("POST", "/v1/devices", 429, json={"token": server.token(), "name": "x"})
        assert int(refused.headers["retry-after"]) > 0
        server.store.now = lambda now=server.store.now: now() + 61
        server.device()


def test_the_audit_log_tells_who_did_what(server):
    device = server.device("pi in the attic")
    server.call("DELETE", f"/v1/devices/{device.id}", 204)
    server.call("POST", "/v1/devices", 401, json={"token": "guess", "name": "intruder"})
    told = [(row["action"], row["detail"] or row["subject"]) for row in server.call("GET", "/v1/audit").json()]
    assert told[0][0] == "enrol-refused"
    assert ("device-revoked", device.id) in told
    assert ("enrol", "pi in the attic") in told


def test_the_administrators_token_is_made_once_and_kept_private(tmp_path):
    settings = Settings(data_dir=tmp_path / "data")
    first, second = Store(settings), Store(settings)
    file = tmp_path / "data" / "admin-token"
    assert first.admin_token == second.admin_token == file.read_text().strip()
    assert len(first.admin_token) >= 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first.close(), second.close()
    file.chmod(0o644)
    with pytest.raises(ServerConfigError, match="chmod 600"):
        Store(settings)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SPRY_ADMIN_TOKEN", "secret", "at least 20 characters"),
        ("SPRY_ADMIN_TOKEN", "a" * 30, "nobody can guess"),
        ("SPRY_DATABASE_URL", "mysql://x", "sqlite, postgresql"),
        ("SPRY_TICK_SECONDS", "-1", "SPRY_TICK_SECONDS"),
        ("SPRY_CONFIG", "/nowhere.toml", "does not exist"),
    ],
)
def test_unsafe_settings_are_refused_with_the_reason(monkeypatch, name, value, told):
    monkeypatch.setenv(name, value)
    with pytest.raises(ServerConfigError, match=told):
        read_settings()


def test_settings_come_from_a_file_and_variables_win(tmp_path, monkeypatch):
    file = tmp_path / "spry.toml"
    file.write_text('retry_seconds = 5\ntick_seconds = 2\ndata_dir = "elsewhere"\n')
    monkeypatch.setenv("SPRY_CONFIG", str(file))
    monkeypatch.setenv("SPRY_RETRY_SECONDS", "7")
    found = read_settings()
    assert (found.retry_seconds, found.tick_seconds, str(found.data_dir)) == (7, 2, "elsewhere")
    file.write_text("retry = 5\n")
    with pytest.raises(SpryError, match="SPRY_RETRY"):
        read_settings()


def test_a_server_that_cannot_keep_anything_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerConfigError, match="data folder"):
        Store(Settings(data_dir=tmp_path / "file" / "data"))
    assert create_app() is not None  # reads no settings before it starts
    assert not Path("spry-data").exists()

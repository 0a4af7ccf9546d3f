"""Viewers, operators and administrators: what each may, and what the audit log calls them."""

import pytest

from server.control.credentials import digest

ROLES = ("viewer", "operator", "administrator")


@pytest.fixture
def people(server):
    """The headers of one person of each role."""
    tokens = {
        role: server.call("POST", "/v1/access", 201, json={"name": f"a-{role}", "role": role}).json()["token"]
        for role in ROLES
    }
    return {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}


def routes(server):
    """Every route of people, with the least role that it takes."""
    least = {
        ("post", "/v1/jobs"): "operator",
        ("post", "/v1/bundles/{bundle}/plan"): "viewer",
        ("post", "/v1/jobs/{job}/pause"): "operator",
        ("post", "/v1/jobs/{job}/resume"): "operator",
        ("post", "/v1/jobs/{job}/extend"): "operator",
        ("post", "/v1/tokens"): "operator",
        ("put", "/v1/devices/{device}/note"): "operator",
        ("patch", "/v1/bundles/{bundle}"): "operator",
        ("put", "/v1/bundles/{bundle}/{path}"): "operator",
        ("put", "/v1/held-out/{sha256}"): "operator",
    }
    for path, methods in server.http.app.openapi()["paths"].items():
        for method, described in methods.items():
            schemes = {name for scheme in described.get("security", []) for name in scheme}
            if "administrator" in schemes and not path.endswith("events"):
                role = "viewer" if method == "get" else least.get((method, path), "administrator")
                yield method, path, role


def test_every_route_takes_its_role_and_those_above(server, people):
    tried = list(routes(server))
    assert {role for _, _, role in tried} == set(ROLES)
    assert len(tried) > 20
    for method, described, least in tried:
        path = described.replace("{bundle}", "0" * 64).replace("{sha256}", "0" * 64)
        for name in ("job", "task", "token", "device", "path", "name"):
            path = path.replace(f"{{{name}}}", "x")
        for role in ROLES:
            answer = server.http.request(method, path, headers=people[role], json={})
            allowed = ROLES.index(role) >= ROLES.index(least)
            assert (answer.status_code not in (401, 403)) == allowed, (method, path, role, answer.text)
            if not allowed:
                told = answer.json()
                assert (answer.status_code, told["code"]) == (403, "forbidden")
                assert told["detail"].startswith(f"a-{role} has the role {role}, and this takes {least}: ask an")


def test_the_audit_log_names_who_did_it(server, bundle, people):
    name = server.upload(bundle)
    body = {"name": "job", "bundle": name, "settings": {"training": {"batch": 2, "length": 8}}}
    server.call("POST", "/v1/jobs", 201, headers=people["operator"], json=body)
    server.call("POST", "/v1/jobs/job/pause", headers=people["operator"])
    server.call("POST", "/v1/jobs/job/stop", headers=people["administrator"])
    token = server.call("POST", "/v1/tokens", 201, headers=people["operator"], json={}).json()
    server.call("DELETE", f"/v1/tokens/{token['id']}", 204, headers=people["administrator"])
    server.call("DELETE", f"/v1/devices/{server.device().id}", 204)
    log = server.call("GET", "/v1/audit", headers=people["viewer"]).json()
    assert {(deed["actor"], deed["action"]) for deed in log} >= {
        ("admin", "access-created"), ("a-operator", "job-created"), ("a-operator", "job-paused"),
        ("a-administrator", "job-ended"), ("a-operator", "token-created"), ("a-administrator", "token-revoked"),
        ("admin", "device-revoked"),
    }  # fmt: skip


def test_everybody_may_ask_who_they_are(server, people):
    assert server.call("GET", "/v1/me").json() == {"name": "admin", "role": "administrator"}
    for role in ROLES:
        assert server.call("GET", "/v1/me", headers=people[role]).json() == {"name": f"a-{role}", "role": role}
    server.call("GET", "/v1/me", 401, headers={"Authorization": "Bearer nobody"})
    server.call("GET", "/v1/me", 401, headers=server.device().headers)


def test_a_revoked_person_is_a_stranger(server, people):
    assert [one["name"] for one in server.call("GET", "/v1/access").json()] == [f"a-{role}" for role in ROLES]
    server.call("DELETE", "/v1/access/a-operator", 204, headers=people["administrator"])
    server.call("GET", "/v1/jobs", 401, headers=people["operator"])
    server.call("DELETE", "/v1/access/a-operator", 404)
    for taken in ("a-operator", "a-viewer", "admin"):
        server.call("POST", "/v1/access", 409, json={"name": taken})
    assert server.call("GET", "/v1/access").json()[1]["revoked"]


@pytest.mark.parametrize("name", ["", "a b", "a\n", "\x1b[2J", "a" * 51, "ä"])
def test_names_that_could_deceive_a_reader_of_the_log(server, name):
    server.call("POST", "/v1/access", 422, json={"name": name})


def test_tokens_of_people_are_kept_as_hashes_only(server, tmp_path):
    token = server.call("POST", "/v1/access", 201, json={"name": "alice"}).json()["token"]
    server.store.close()
    data = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("spry.sqlite*"))
    assert digest(token).encode() in data
    assert token.encode() not in data


def test_servers_with_other_administrators_tokens_are_told_of(serving, postgres, tmp_path, caplog):
    name = f"tokens_{abs(hash(tmp_path)):x}"
    postgres.psql(f"CREATE DATABASE {name}")
    shared = {"database_url": postgres.get_uri(name)}
    told = "had another administrator's token"
    first, second = ("the-first-of-some-tokens-of-administrators", "another-one-that-nobody-guesses-either-0")
    with serving(tmp_path / "one", **shared, admin_token=first) as one:
        assert told not in caplog.text
        with serving(tmp_path / "two", **shared, admin_token=second):
            assert caplog.text.count(told) == 1
            answer = one.call("GET", "/v1/access", 401, headers={"Authorization": f"Bearer {second}"})
            assert "give all of them one SPRY_ADMIN_TOKEN" in answer.json()["detail"]
        with serving(tmp_path / "three", **shared, admin_token=second):
            assert caplog.text.count(told) == 1

"""Test who is refused before anything is read, how much each route takes, and what no text may have."""

import asyncio
import json
import os
import time

import pytest
from fastapi.routing import APIRoute

from server.addresses import client_of, networks
from server.errors import Refusal
from server.settings import read_settings
from server.web.admission import Route
from server.web.bodies import Taken, Uploads, parsed

TYPE = {"Content-Type": "application/json"}
BODIES = "POST", "PUT", "PATCH"


@pytest.fixture
def bundle_name(server, tiny):
    return server.upload(tiny)


async def ask(app, method, path, headers=(), body=(), whole=False):
    """An answer's status and document, and how many parts of the body were taken for it."""
    parts, sent = list(body), []

    async def receive():
        if not parts:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts) or not whole}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("198.51.100.7", 1),
        "server": ("test", 80), "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 10)
    content = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(content), len(body) - len(parts)


def routes(app, prefix=""):
    for route in app.routes:
        if isinstance(route, APIRoute):
            yield route
        inner = getattr(route, "original_router", None) or getattr(route, "app", None)
        if inner is not None and hasattr(inner, "routes"):
            yield from routes(inner)


def test_every_route_with_a_message_asks_who_it_is_first(server):
    known = [route for route in routes(server.http.app) if route.methods & set(BODIES) and route.body_field]
    assert len(known) >= 5
    assert all(isinstance(route, Route) for route in known)


def addresses():
    return [
        ("PUT", "/v1/tasks/x/update"), ("PUT", "/v1/tasks/update/jvps/0"), ("POST", "/v1/tasks/x/failure"),
        ("POST", "/v1/jobs/update/stop"), ("POST", "/v1/jobs"), ("POST", "/v1/tokens"), ("POST", "/v1/check-in"),
        ("PUT", f"/v1/bundles/{'0' * 64}/manifest.json"), ("PUT", f"/v1/held-out/{'0' * 64}"),
    ]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), addresses())
def test_nothing_is_read_from_who_has_no_secret(server, method, path):
    status, document, taken = server.http.portal.call(
        ask, server.http.app, method, path, TYPE.items(), [b"x" * 65536] * 1000
    )
    assert (status, document["code"], taken) == (401, "unauthorized", 0)


def test_an_enrolment_is_small(server):
    body = [b'{"name": "' + b"x" * 65536] * 1000
    status, document, taken = server.http.portal.call(ask, server.http.app, "POST", "/v1/devices", TYPE.items(), body)
    assert (status, document["code"]) == (413, "too-large")
    assert taken == 1


def test_derivatives_are_bounded_by_the_jobs_own(server, bundle_name):
    server.create_job(bundle_name, training={"mode": "iteration", "iterations": 1}, per_round=1)
    server.advance()
    device = server.device()
    task = device.task()
    address = f"/v1/tasks/{task['id']}/jvps/0"
    body = [b"x" * 65536] * 1000
    status, document, taken = server.http.portal.call(
        ask, server.http.app, "PUT", address, device.headers.items(), body
    )
    assert (status, document["code"]) == (413, "too-large")
    assert taken <= 2


def test_a_body_that_does_not_come_is_given_up(serving):
    with serving(patience_seconds=0.2) as server:
        for body in ([], [b'{"token": ']):
            status, document, _ = server.http.portal.call(
                ask, server.http.app, "POST", "/v1/devices", TYPE.items(), body
            )
            assert (status, document["code"]) == (408, "busy")


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 33 + b"]" * 33, "nested more than 32 deep"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "nested more than 32 deep"),
        (b'["\\"", ' * 33 + b"1" + b"]" * 33, "nested more than 32 deep"),
        (b"[" + b"{}," * 100_000 + b"{}]", "more than 20000 values"),
        (b'["' + b'","' * 30_000 + b'"]', "more than 20000 values"),
        ("{}".encode("utf-16"), "not JSON in UTF-8"),
        (b"[", "no JSON"),
        (b"9" * 5000, "no JSON"),
        (b'{"name": "a\\u0000b"}', "may not have the character '\\x00'"),
        (b'{"a\\u001b": 1}', "may not have the character '\\x1b'"),
        (b'[["\\ud800"]]', "may not have the character '\\ud800'"),
        ('"\u202e"'.encode(), "may not have the character '\\u202e'"),
    ],
)
def test_a_message_is_refused_before_it_costs_anything(content, why):
    with pytest.raises(Refusal) as refused:
        parsed(content, Taken())
    assert refused.value.status == 422
    assert why in refused.value.detail


def test_messages_that_are_as_they_should_be():
    assert parsed(b"[" * 32 + b"]" * 32, Taken())
    assert parsed(json.dumps({"name": "[{" * 50 + '\\"'}).encode(), Taken()) == {"name": "[{" * 50 + '\\"'}
    assert parsed('{"name": "Zoë 😀"}'.encode(), Taken()) == {"name": "Zoë 😀"}
    assert parsed(b"", Taken()) is None


def test_what_a_crash_says_is_taken_without_what_steers_a_terminal(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    task = device.task()
    device.call("POST", f"/v1/tasks/{task['id']}/failure", json={"reason": "line one\nline \x1b[31mtwo\0"})
    with server.store.database.read() as connection:
        from server.storage.work import assignments

        assert assignments.find(connection, task["id"]).reason == "line one line  [31mtwo "


@pytest.mark.parametrize("text", ["a\0b", "\x1b[2J", "two\nlines", "\u202ecod.exe", "\ud800"])
def test_names_have_no_control_characters(server, bundle_name, text):
    for path, body in (
        ("/v1/tokens", {"label": text}),
        ("/v1/devices", {"token": server.token(), "name": text}),
        ("/v1/jobs", {"name": text, "bundle": bundle_name}),
        ("/v1/jobs/job/stop", {"reason": text}),
    ):
        problem = server.call("POST", path, 422, content=json.dumps(body), headers=server.admin | TYPE).json()
        assert "character" in problem["detail"]
    assert server.call("GET", "/v1/jobs/a%00b", 422).json()["code"] == "invalid"
    assert server.call("GET", "/v1/events?job=a%00b", 422).json()["code"] == "invalid"


def test_a_refusal_repeats_no_control_characters():
    assert Refusal(422, "invalid", "it holds \0\x1b[31m").detail == "it holds \\x00\\x1b[31m"


# --- where from ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "trusted", "said", "expected"),
    [
        ("127.0.0.1", "", "203.0.113.9", "127.0.0.1"),
        ("198.51.100.7", "127.0.0.1", "203.0.113.9", "198.51.100.7"),
        ("127.0.0.1", "127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "127.0.0.1", "1.2.3.4, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.2", "10.0.0.0/8, 127.0.0.1", "1.2.3.4, 203.0.113.9, 10.0.0.9", "203.0.113.9"),
        ("10.0.0.2", "10.0.0.0/8", "1.2.3.4, \x1b[31mevil", "10.0.0.2"),
        ("10.0.0.2", "10.0.0.0/8", "", "10.0.0.2"),
        ("::1", "::1", "[2001:db8::7]:443", "2001:db8::7"),
        ("127.0.0.1", "127.0.0.1", "203.0.113.9:5000", "203.0.113.9"),
        ("::ffff:127.0.0.1", "127.0.0.1", "203.0.113.9", "203.0.113.9"),
    ],
)
def test_only_trusted_proxies_say_where_a_request_comes_from(peer, trusted, said, expected):
    assert client_of(peer, [(b"x-forwarded-for", said.encode())], networks(trusted)) == expected


def test_an_invented_address_evades_no_limit(serving):
    with serving(enrolments_per_minute=3) as server:
        statuses = [
            server.http.portal.call(
                ask, server.http.app, "POST", "/v1/devices",
                [*TYPE.items(), ("X-Forwarded-For", f"203.0.113.{number}")], [b'{"token": "x", "name": "y"}'], True,
            )[0]
            for number in range(5)
        ]  # fmt: skip
        actors = {entry["actor"] for entry in server.call("GET", "/v1/audit").json()}
    assert statuses == [401, 401, 401, 429, 429]
    assert not [actor for actor in actors if actor.startswith("203.")]


def test_settings_of_proxies_are_addresses():
    with pytest.raises(Exception, match="SPRY_TRUSTED_PROXIES: must be addresses or networks"):
        read_settings(trusted_proxies="proxy.example.org")


def test_metrics_have_a_token_where_one_is_set(serving):
    token = "a-token-for-prometheus-alone"
    with serving(metrics_token=token) as server:
        server.call("GET", "/metrics", 401, headers={})
        server.call("GET", "/metrics", 401, headers={"Authorization": "Bearer another-token-altogether"})
        server.call("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        server.call("GET", "/metrics")
        server.call("GET", "/v1/jobs", 401, headers={"Authorization": f"Bearer {token}"})
    with serving() as server:
        server.call("GET", "/metrics", headers={})


# --- uploads ---------------------------------------------------------------------------------------------------------


def test_a_task_is_uploaded_once_at_a_time():
    uploads = Uploads()
    with uploads.one("d-1", "task"), uploads.one("d-1", "another"):
        for device, task in (("d-1", "task"), ("d-1", "third")):
            with pytest.raises(Refusal) as refused, uploads.one(device, task):
                pass
            assert (refused.value.status, refused.value.retry_after) == (429, 5)
        with uploads.one("d-2", "third"):
            pass
    with uploads.one("d-1", "task"):
        pass


def test_what_a_cut_upload_left_is_removed_at_the_start(serving):
    with serving() as server:
        old, new = server.store.blobs.partial(), server.store.blobs.partial()
        os.utime(old, (1, 1))
    with serving(background=True):  # what carries rounds on sweeps
        until = time.monotonic() + 300
        while old.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert new.exists()


def test_a_cut_connection_is_a_line(server, bundle_name, caplog):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    task = device.task()

    async def cut(app):
        parts = [{"type": "http.request", "body": b"x" * 100, "more_body": True}, {"type": "http.disconnect"}]

        async def receive():
            return parts.pop(0)

        async def send(_):
            pass

        headers = [(name.lower().encode(), value.encode()) for name, value in device.headers.items()]
        path = f"/v1/tasks/{task['id']}/update"
        await app(
            {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "PUT", "scheme": "http",
                "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("x", 1),
                "server": ("test", 80), "headers": headers,
            },
            receive, send,
        )  # fmt: skip

    with caplog.at_level("INFO", "spry.server"):
        server.http.portal.call(cut, server.http.app)
    told = [record for record in caplog.records if "connection was cut" in record.message]
    assert len(told) == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert not list(server.store.blobs.folder.glob(".partial-*"))


# --- a database that is away -----------------------------------------------------------------------------------------


def test_a_database_that_is_down_is_told_to_come_back_to(serving, postgres, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("server.web.readiness._EVERY", 0.0)
    name = f"away_{abs(hash(tmp_path)):x}"
    postgres.psql(f"CREATE DATABASE {name}")
    with serving(database_url=postgres.get_uri(name)) as server:
        server.call("GET", "/readyz")
        postgres.psql(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        ends = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        postgres.psql(ends)
        caplog.clear()
        for method, path in (("GET", "/readyz"), ("GET", "/v1/jobs")):
            response = server.call(method, path, 503)
            assert response.headers["Retry-After"] == "5"
            assert response.json()["code"] == "busy"
        told = [record for record in caplog.records if "the database does not answer" in record.message]
        assert len(told) == 2
        assert not [record for record in caplog.records if record.exc_info or "\n" in record.message]
        assert server.call("GET", "/healthz").text == "ok\n"
        postgres.psql(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        server.call("GET", "/readyz")

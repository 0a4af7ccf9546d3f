"""Whatever the OpenAPI document allows, and much that it does not: never a 5xx, never silence."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

SKIPPED = {"/v1/jobs/{job}/events", "/v1/events"}  # endless answers; have tests of their own


@pytest.fixture
def api(server, bundle_name):
    server.create_job(bundle_name, per_round=1000)
    server.advance()
    device = server.device()
    task = device.task()
    return server, device, task


def test_no_message_breaks_the_server(api):
    server, device, task = api
    app = server.http.app
    known = {"job": "job", "task": task["id"], "bundle": task["bundle"], "device": "d-0", "token": "0"}
    described = schemathesis.openapi.from_asgi("/openapi.json", app)
    sent = 0
    for found in described.get_all_operations():
        operation = found.ok()
        if operation.path not in SKIPPED:
            by_device = "task" in operation.path or "check-in" in operation.path
            sent += bombard(operation, server.http, device.headers if by_device else server.admin, known)
    assert sent > 150


def bombard(operation, session, headers, known) -> int:
    """Send what the operation's description allows, half of it to things that exist."""
    count = 0

    @settings(
        max_examples=6, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy())
    def send(case):
        nonlocal count
        count += 1
        if count % 2:
            case.path_parameters |= {name: known[name] for name in case.path_parameters if name in known}
        response = case.call(session=session, headers=headers)
        case.validate_response(
            response, checks=[not_a_server_error, content_type_conformance, response_schema_conformance]
        )

    send()
    return count


@schemathesis.serializer("application/vnd.safetensors")
def drawn_bytes(_context, value):
    return value if isinstance(value, bytes) else value.data


def test_a_jobs_events_are_told_as_they_happen(api):
    server, device, task = api
    with server.http.stream("GET", "/v1/jobs/job/events", headers=server.admin) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: job"
        assert '"reported":0' in next(lines).replace(" ", "")
        device.send(task, device.update(task))
        while not (line := next(lines)).startswith("data"):
            pass
        assert '"reported":1' in line.replace(" ", "")
        server.call("POST", "/v1/jobs/job/stop")
        assert any('"state": "ended"' in line for line in lines)


def test_the_document_describes_every_refusal():
    from server.app import create_app

    document = create_app().openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "4XX" in operation["responses"], (method, path)

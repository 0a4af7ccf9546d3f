"""Whatever the OpenAPI document allows, and much that it does not: never a 5xx, never silence."""

from functools import partial

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.server.conftest import ADMIN

SKIPPED = {"/v1/jobs/{job}/events"}  # an endless answer; has a test of its own


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
    count = 0
    for found in described.get_all_operations():
        operation = found.ok()
        if operation.path in SKIPPED:
            continue
        by_device = "task" in operation.path or "check-in" in operation.path
        sending = partial(sent, session=server.http, headers=device.headers if by_device else server.admin)

        @settings(
            max_examples=12,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def send(case, sending=sending):
            nonlocal count
            for name in case.path_parameters:
                if name in known and count % 2:
                    case.path_parameters[name] = known[name]
            count += 1
            sending(case)

        send()
    assert count > 200


def sent(case, session, headers):
    response = case.call(session=session, headers=headers)
    case.validate_response(response, checks=[not_a_server_error, content_type_conformance, response_schema_conformance])


@schemathesis.serializer("application/vnd.safetensors")
class Bytes:
    """Tensors are drawn as bytes."""

    def as_requests(self, _context, payload):
        return {"data": payload if isinstance(payload, bytes) else str(payload).encode()}

    as_asgi = as_werkzeug = as_requests


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
    assert ADMIN

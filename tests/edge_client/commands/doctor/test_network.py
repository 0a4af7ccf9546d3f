"""Test what `spry doctor` says of the way to a server; the servers are real ones."""

import ssl
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from edge_client.client.enrolment import enrol
from edge_client.commands.doctor.machine import Scope
from edge_client.commands.doctor.network import expiry, server
from edge_client.events import silent
from tests.test_journeys import certificates

DAY = 86_400


def looked(*args: object, **options: object) -> dict:
    return {finding.name: finding for finding in server(Scope(*args, **options))}


@contextmanager
def answering(ahead: float = 0.0, body: bytes = b"ok\n", tls: ssl.SSLContext | None = None):
    """A web server whose clock and words are its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp=None) -> str:
            return formatdate(time.time() + ahead, usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        if tls:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_nothing_is_looked_at_where_no_server_is_named():
    assert looked() == {}


def test_a_server_and_a_device_that_enrols_with_it(fleet, tmp_path):
    home = tmp_path / "home"
    found = looked(home=home, server=fleet.address)
    assert [found[name].state for name in ("server", "clock", "enrolment")] == ["ok", "ok", "warning"]
    assert f"spry join --server {fleet.address}" in found["enrolment"].advice

    client = fleet.client()
    with client.store.locked():
        enrol(client.server, client.store, client.token, client.name, silent)
    device = client.server.identity.device
    assert looked(home=home, server=fleet.address)["enrolment"].found == f"enrolled as {device}"
    assert fleet.call("GET", "/v1/devices").json()[0]["profile"] is None  # it was no check-in

    fleet.call("DELETE", f"/v1/devices/{device}")
    revoked = looked(home=home, server=fleet.address)["enrolment"]
    assert revoked.state == "problem"
    assert "revoked" in revoked.found
    (client.store.folder / "identity.json").write_text("{")
    assert "cannot be read" in looked(home=home, server=fleet.address)["enrolment"].found


def test_nobody_there():
    found = looked(server="http://127.0.0.1:9")
    assert list(found) == ["server"]
    assert found["server"].state == "problem"
    assert "curl -v http://127.0.0.1:9/healthz" in found["server"].advice


def test_another_web_server():
    with answering(body=b"<html>welcome</html>") as url:
        found = looked(server=url)["server"]
    assert (found.state, "not as a spry server" in found.found) == ("problem", True)


@pytest.mark.parametrize(("ahead", "state"), [(10, "ok"), (90, "warning"), (-3600, "warning")])
def test_clocks(ahead, state):
    with answering(ahead) as url:
        found = looked(server=url)["clock"]
    assert found.state == state
    if state == "warning":
        assert ("behind" if ahead > 0 else "ahead") in found.found
        assert "timedatectl" in found.advice


def test_certificates(tmp_path: Path):
    ca, certificate, key = certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with answering(tls=tls) as url:
        strange = looked(server=url)
        known = looked(server=url, ca=ca)
    assert list(strange) == ["server"]
    assert "--ca" in strange["server"].advice
    assert known["server"].state == "ok"
    assert known["certificate"].state == "warning"  # the tests' certificates are for two days
    assert "valid for 2 days" in known["certificate"].found


def test_when_a_certificate_ends():
    certificate = {"notAfter": "Jan  1 00:00:00 2030 GMT"}
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    assert expiry("certificate", certificate, ends - 100 * DAY).state == "ok"
    soon = expiry("certificate", certificate, ends - 3 * DAY)
    assert (soon.state, "valid for 3 days" in soon.found) == ("warning", True)

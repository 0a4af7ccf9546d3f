"""Which weights a task starts from: those that are kept, what changed since, or all anew."""

import hashlib
import http.server
import threading
from contextlib import contextmanager
from dataclasses import replace

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from edge_client.bundle.folder import Bundle
from edge_client.rounds.versions import current
from edge_client.store.job import KeptWeights
from edge_client.store.jobs import DeviceStore
from edge_client.wire.server import Server
from server.rounds.publisher import WeightsPublisher
from server.storage.files.publication import open_target

VERSION = 5
THEN, LATER, LOST = 1.7e9 + 1 / 3, 1.7e9 + 500.125, 1.7e9 + 77
"""When versions were published."""


@pytest.mark.parametrize(
    ("kept", "start", "asked"),
    [
        (None, (0, 0.0), []),
        (None, (5, LATER), [{"since": "0"}]),
        ((5, LATER), (5, LATER), []),
        ((3, THEN), (5, LATER), [{"since": "3", "published": repr(THEN)}]),
        # of the line that a restored server has lost
        ((5, LOST), (5, LATER), [{"since": "-1"}]),
        ((3, LOST), (5, LATER), [{"since": "3", "published": repr(LOST)}, {"since": "-1"}]),
        ((7, LOST), (5, LATER), [{"since": "0"}]),
        # kept by an earlier version of the client, or told by one of the server
        ((5, 0.0), (5, LATER), [{"since": "-1"}]),
        ((3, 0.0), (5, LATER), [{"since": "-1"}]),
        ((5, LOST), (5, 0.0), []),
        ((3, 0.0), (5, 0.0), [{"since": "3"}]),
    ],
)
def test_weights_of_a_lost_line_are_fetched_anew(trainable, task, kept, start, asked, tmp_path):
    version, published = start
    seen = []

    def answer(asking: httpx.Request) -> httpx.Response:
        seen.append(dict(asking.url.params))
        if seen[-1].get("published") == repr(LOST):
            return httpx.Response(409, json={"title": "", "status": 409, "detail": "", "code": "stale"},
                                  headers={"Content-Type": "application/problem+json"})  # fmt: skip
        return httpx.Response(200, content=save(now), headers={"X-Spry-Version": str(version)})

    bundle = Bundle.open(trainable)
    initial = bundle.initial_adapter()
    now = {name: value + 1 for name, value in initial.items()}
    job = DeviceStore(tmp_path, "http://x").job("j")
    if kept is not None:
        job.save_weights("b", KeptWeights(kept[0], initial, published=kept[1]))
    server = Server("http://x", transport=httpx.MockTransport(answer), patience=0)
    begun = replace(task, bundle="b", version=version, published=published)
    found = current(server, job, bundle, begun)
    assert current(server, job, bundle, begun).version == version  # nothing more is asked
    assert seen == asked
    assert found.version == version
    for name, value in found.weights.items():
        np.testing.assert_array_equal(value, (now if asked else initial)[name])


class Mirror(http.server.BaseHTTPRequestHandler):
    """Answers with what the test says."""

    disable_nagle_algorithm = True  # headers and body are two packets, and the second would wait 40 ms

    def do_GET(self):
        self.server.asked.append(self.path)
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def mirror(status, body):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as place:
        place.answer, place.asked = (status, body), []
        threading.Thread(target=place.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{place.server_address[1]}/below", place.asked
        place.shutdown()


@pytest.fixture
def start(trainable, task, tmp_path):
    """Starts a task with mirrors; gives the weights, those that are right, and how often the server was asked."""
    asked, told = [], []

    def started(answered, name=None):
        bundle = Bundle.open(trainable)
        right = {one.name: bundle.initial_adapter()[one.name] + 1 for one in bundle.manifest.trained}
        content = save(right)

        def answer(asking: httpx.Request) -> httpx.Response:
            asked.append(asking.url.path)
            return httpx.Response(200, content=content, headers={"X-Spry-Version": str(VERSION)})

        server = Server("http://x", transport=httpx.MockTransport(answer), patience=0)
        with mirror(*answered(content)) as (address, seen):
            begun = replace(
                task, bundle="b", version=VERSION, published=LATER, mirrors=[address],
                weights=hashlib.sha256(content).hexdigest() if name is None else name,
            )  # fmt: skip
            store = DeviceStore(tmp_path, "http://x").job("j")
            found = current(server, store, bundle, begun, told.append)
            assert current(server, store, bundle, begun).version == VERSION  # nothing more is asked
        assert found.weights.keys() >= right.keys()
        assert all((found.weights[name] == value).all() for name, value in right.items())
        return seen, asked, told, begun.weights

    return started


def test_weights_that_a_mirror_has_are_not_asked_of_the_server(start):
    seen, asked, told, name = start(lambda content: (200, content))
    assert (seen, asked, told) == ([f"/below/weights/{name}"], [], [])


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        (lambda _: (404, b""), "answers 404"),
        (lambda content: (200, bytes(len(content))), "it gives a damaged "),
        (lambda content: (200, content[:-1]), "it gives a damaged "),
        (lambda content: (200, content + bytes(1 << 21)), "answers with more than"),
        (lambda _: (302, b""), "answers 302"),
    ],
)
def test_a_mirror_that_does_not_have_them_right_costs_a_line(start, answered, why):
    seen, asked, told, _ = start(answered)
    assert (len(seen), asked) == (1, ["/v1/jobs/job-1/weights"])
    (line,) = told
    assert (line.kind, why in line.message) == ("warning", True)


def test_a_mirror_is_asked_for_no_weights_that_the_server_does_not_name(start):
    seen, asked, told, _ = start(lambda content: (200, content), name="")
    assert (seen, len(asked), told) == ([], 1, [])


def test_a_device_has_the_weights_of_a_round_from_where_the_server_put_them(fleet, trainable, tmp_path):
    shown, seen = tmp_path / "shown", []

    class Shown(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=shown)

        def log_request(self, code="-", size="-"):
            seen.append((self.path, int(code)))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shown) as place:
        threading.Thread(target=place.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        store = fleet.app.state.services.store
        store.settings.mirrors = f"http://127.0.0.1:{place.server_address[1]}"
        store.settings.publish_weights = str(shown)
        fleet.job(fleet.upload(trainable), rounds=2)
        client = fleet.client()
        client.run(rounds=1)
        fleet.until(lambda: fleet.state()["done"] == 1)
        WeightsPublisher(store, open_target(str(shown)), threading.Event()).publish()
        (name,) = (path.name for path in (shown / "weights").iterdir())
        client.run(rounds=1)
        assert fleet.ended()["done"] == 2
        place.shutdown()
    assert [line for line in seen if line[0].startswith("/weights/")] == [(f"/weights/{name}", 200)]

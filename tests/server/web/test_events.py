"""The stream that a page reads: everything at first, then what changed."""

import json
import signal
from collections.abc import Iterator

import httpx
import pytest

from server.web.routes import events
from server.web.routes.events import Feed
from tests.server.rounds.test_rounds import AVERAGE, play


@pytest.fixture
def job(server, bundle_name):
    made = server.create_job(bundle_name, per_round=2, over_selection=1, optimizers=AVERAGE)
    server.advance()
    return made


def news(feed: Feed) -> dict[str, object]:
    return {event.name: json.loads(event.data) for event in feed.news().events}


def test_all_comes_first_and_then_what_changed(server, job):
    devices = [server.device("pi"), server.device("jetson")]
    feed = Feed(server.store, job["id"])
    first = news(feed)
    assert {name: len(value) for name, value in first.items() if name not in ("assignment", "fleet")} == {
        "jobs": 1, "devices": 2, "rounds": 1, "metrics": 0, "traffic": 0, "refusals": 0, "advice": 0,
    }  # fmt: skip
    assert first["assignment"] is None
    assert first["fleet"] == {"states": {"waiting": 2}, "first": [devices[1].id, devices[0].id]}
    assert feed.news().events == []

    task = devices[1].task()
    told = news(feed)
    assert set(told) == {"jobs", "devices", "fleet", "rounds", "assignment"}
    (device,) = told["devices"]
    assert (device["name"], device["state"], device["job"]) == ("jetson", "training", "job")
    (part,) = told["assignment"]["parts"]
    assert len(told["assignment"]["units"]) == 4
    assert (part["name"], part["units"], part["state"], part["reported"]) == ("jetson", task["units"], "open", False)
    assert told["jobs"][0]["progress"]["training"] == 1

    devices[1].send(task, devices[1].update(task))
    server.store.traffic.save()
    told = news(feed)
    assert told["assignment"]["parts"][0]["reported"] is True
    assert [row["round"] for row in told["traffic"]] == [1]

    play(server, devices[:1], [0.1])
    told = news(feed)
    assert [row["number"] for row in told["rounds"]] == [2, 1]
    assert told["rounds"][1]["state"] == "done"
    assert {row["name"] for row in told["metrics"]} >= {"loss", "reports", "seconds"}
    assert (told["assignment"]["round"], told["assignment"]["state"]) == (1, "done")
    assert feed.news().events == []


def test_a_refusal_is_told(server, job):
    feed = Feed(server.store, job["id"])
    feed.news()
    device = server.device("pi")
    device.send(device.task(), b"nonsense", 422)
    told = news(feed)
    (refusal,) = told["refusals"]
    assert (refusal["code"], refusal["device"], refusal["name"]) == ("invalid", device.id, "pi")
    assert told["jobs"][0]["refused"] == {"invalid": 1}


def test_without_a_job_there_are_no_details(server, job):
    assert set(news(Feed(server.store, None))) == {"jobs", "devices", "fleet"}


def test_no_more_rounds_come_than_a_page_shows(server, job, monkeypatch):
    monkeypatch.setattr(events, "_ROUNDS", 3)
    devices = [server.device(), server.device()]
    for _ in range(4):
        play(server, devices, [0.1, 0.1])
    feed = Feed(server.store, job["id"])
    assert [row["number"] for row in news(feed)["rounds"]] == [5, 4, 3]
    play(server, devices, [0.1, 0.1])
    assert [row["number"] for row in news(feed)["rounds"]] == [6, 5]


def test_a_job_that_ended_long_ago_is_not_looked_at_again(server, job):
    server.call("POST", "/v1/jobs/job/stop")
    feed = Feed(server.store, job["id"])
    assert news(feed)["jobs"][0]["state"] == "ended"
    server.store.now = lambda now=server.store.now: now() + 100
    assert feed.news().events == []
    server.call("POST", "/v1/jobs", 409, json={"name": "job", "bundle": job["bundle"], "settings": job["settings"]})
    assert feed.news().events == []


def test_of_many_devices_the_first_are_told_and_all_are_counted(server, job, monkeypatch):
    monkeypatch.setattr(events, "_DEVICES", 3)
    devices = [server.device(f"board-{number}") for number in range(5)]
    feed = Feed(server.store, None)
    told = news(feed)
    assert [row["name"] for row in told["devices"]] == ["board-0", "board-1", "board-2"]
    assert told["fleet"] == {"states": {"waiting": 5}, "first": [device.id for device in devices[:3]]}
    devices[4].task()
    told = news(feed)
    assert [(row["name"], row["state"]) for row in told["devices"]] == [("board-4", "training")]
    assert told["fleet"]["states"] == {"training": 1, "waiting": 4}
    assert told["fleet"]["first"] == [devices[number].id for number in (4, 0, 1)]
    server.call("DELETE", f"/v1/devices/{devices[4].id}", 204)
    told = news(feed)
    assert [row["name"] for row in told["devices"]] == ["board-2"], "it was not shown meanwhile"
    assert told["fleet"]["first"] == [device.id for device in devices[:3]]
    late = {event.name: json.loads(event.data) for event in feed.all()}
    assert [row["id"] for row in late["devices"]] == late["fleet"]["first"]


def test_a_silent_device_is_away_and_a_revoked_one_revoked(server, job):
    device = server.device()
    feed = Feed(server.store, None)
    assert news(feed)["devices"][0]["state"] == "waiting"
    server.store.now = lambda now=server.store.now: now() + 200
    assert news(feed)["devices"][0]["state"] == "away"
    server.call("DELETE", f"/v1/devices/{device.id}", 204)
    assert news(feed)["devices"][0]["state"] == "revoked"


def test_only_administrators_may_listen(server, job):
    device = server.device()
    for headers in ({}, device.headers):
        server.call("GET", "/v1/events", 401, headers=headers)
    server.call("GET", "/v1/events", 404, params={"job": "unknown"})


# --- over HTTP, from a real server ---


def lines(response: httpx.Response) -> Iterator[tuple[str, object]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/job/events"])
def test_a_page_that_listens_does_not_keep_the_server_from_stopping(tmp_path, bundle, path):
    from tests.test_journeys import fleet

    server = fleet.Server(tmp_path)
    try:
        with server.administrator() as admin:
            name = admin.upload_bundle(bundle)
            settings = {"training": {"batch": 2, "length": 8}}
            admin.post("/v1/jobs", {"name": "job", "bundle": name, "settings": settings})
        headers = {"Authorization": f"Bearer {fleet.TOKEN}"}
        with httpx.stream("GET", server.url + path, headers=headers, timeout=300) as response:
            told = lines(response)
            name, value = next(told)
            assert name in ("job", "jobs")
            assert value
            server.process.process.send_signal(signal.SIGTERM)
            list(told)  # whole: the server ended the answer itself
        assert server.process.process.wait(300) in (0, -signal.SIGTERM)
    finally:
        server.stop()

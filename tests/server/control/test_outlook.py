"""Test what a job is heading for, what holds it up, and what happened to it."""

import shutil

import pytest

from server.control.jobs import find_job
from server.policy.assignment import RoundSlot
from server.rounds.selection.fleet import needs_of
from server.storage import jobs
from tests.adapters import everywhere
from tests.server.rounds.selection.test_fleet import WAITS, here, later, memory_of_none
from tests.server.rounds.test_rounds import AVERAGE, play

START = 1_800_000_000.0


def at(server, seconds):
    server.store.now = lambda: START + seconds


def advice(server, name="job"):
    return server.call("GET", f"/v1/jobs/{name}/advice").json()


def test_the_end_is_guessed_from_the_newest_rounds(serving, bundle, database):
    with serving(**database) as server:
        at(server, 0)
        server.create_job(server.upload(bundle), per_round=2, over_selection=1, rounds=10, optimizers=AVERAGE)
        server.advance()
        devices = [server.device() for _ in range(2)]
        assert server.job()["ends_about"] is None
        for closed in (50, 60, 90, 100):  # 10, 30 and 10 seconds apart
            at(server, closed)
            play(server, devices, [0.1, 0.1])
        server.store.traffic.save()
        assert server.job()["ends_about"] == pytest.approx(START + 100 + 6 * 10)
        assert server.job()["devices"] == 2
        at(server, 150)
        assert server.job()["ends_about"] == pytest.approx(START + 160)  # as long as nothing else is known
        at(server, 201)
        assert server.job()["ends_about"] is None  # no round has ended for more than ten times as long
        at(server, 102)
        server.call("POST", "/v1/jobs/job/pause")
        assert server.job()["ends_about"] is None


def test_a_job_that_goes_its_way_needs_no_advice(server, bundle_name):
    server.create_job(bundle_name, per_round=2, over_selection=1, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(3)]
    here(server, devices)
    assert advice(server) == []
    tasks = [device.task() for device in devices[:2]]
    assert tasks
    assert advice(server) == []


def test_what_holds_a_job_up(serving, bundle, database):
    with serving(**database) as server:
        server.create_job(server.upload(bundle), per_round=3, over_selection=1, minimum=3, optimizers=AVERAGE)
        server.advance()
        (alone,) = advice(server)
        assert "no enrolled device is suitable and here" in alone
        devices = [server.device(f"pi {number}") for number in range(5)]
        here(server, devices[:3], runtimes=["executorch"])
        here(server, devices[3:4], memory_bytes=10)
        here(server, devices[4:], job="another")
        later(server, 3)
        told = advice(server)
        assert told[0].startswith("round 1 wants 3 clients, no enrolled device is suitable and here")
        assert set(told[1:]) == {
            "no part for pi 0, pi 1, pi 2, which are here: job needs one of the runtimes onnx",
            "no part for pi 3, which is here: no free slot fits its memory (0 MB)",
            "no part for pi 4, which is here: it asks only for tasks of another (--job)",
        }
        server.call("POST", "/v1/jobs/job/pause")
        assert advice(server) == ["it is paused: no device is given a part until somebody resumes it"]
        with server.store.database.write() as connection:
            jobs.set_aside(connection, server.job()["id"], "its weights are gone")
        assert advice(server) == ["it cannot go on: its weights are gone; mend that, then resume it"]
        server.call("POST", "/v1/jobs/job/stop")
        assert advice(server) == ["it ended before anything was learned: its adapter is the exported one"]


def test_a_disk_that_is_nearly_full_is_told(server, bundle_name, monkeypatch):
    server.create_job(bundle_name, per_round=2, over_selection=1, optimizers=AVERAGE)
    server.advance()
    here(server, [server.device() for _ in range(2)])
    full = shutil.disk_usage(server.store.settings.data_dir)._replace(free=3_100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert advice(server) == ["the server has 3.1 MB of disk left, so that it may keep no more rounds: free some space"]


def test_a_round_that_failed_is_told_until_one_is_done(server, bundle_name):
    server.create_job(bundle_name, per_round=2, over_selection=1, minimum=2, deadline=10, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(2)]
    here(server, devices)
    task = devices[0].task()
    devices[0].send(task, devices[0].update(task))
    later(server, WAITS)
    server.advance()
    assert advice(server)[0] == "round 1 failed: 1 of at least 2 clients reported in time"


def test_the_log_tells_what_happened(serving, bundle, database):
    with serving(**database) as server:
        made = server.create_job(server.upload(bundle), per_round=1, over_selection=1, optimizers=AVERAGE)
        server.advance()
        device = server.device("pi 3")
        later(server, 1)
        play(server, [device], [0.1])
        later(server, 1)
        task = device.task()
        device.call("POST", f"/v1/tasks/{task['id']}/failure", json={"reason": "the battery is low"})
        later(server, 1)
        token = server.call("POST", "/v1/access", 201, json={"name": "alice", "role": "operator"}).json()["token"]
        server.call("POST", f"/v1/jobs/{made['id']}/pause", headers={"Authorization": f"Bearer {token}"})
        later(server, 1)
        server.call("POST", "/v1/jobs/job/stop", json={"reason": "enough"})
        lines = server.call("GET", "/v1/jobs/job/log").json()
        assert [(line["kind"], line["who"], line["text"].partition(",")[0]) for line in lines] == [
            ("deed", "admin", "ended it: enough"),
            ("round", "", "round 2 failed: enough"),
            ("deed", "alice", "paused it"),
            ("refusal", "pi 3", "failed in round 2: the battery is low"),
            ("round", "", "round 1 is done: 1 report"),
            ("deed", "admin", "made the job"),
        ]
        assert "loss 1" in lines[4]["text"]
        assert [line["time"] for line in lines] == sorted((line["time"] for line in lines), reverse=True)
        assert server.call("GET", "/v1/jobs/job/log?limit=2").json() == lines[:2]


def test_devices_that_walk_by_estimates_are_told(serving, bundle, database):
    """The server's own sums say how much memory the way back through the whole model takes."""
    with serving(**database) as server:
        walking = {"estimator": "auto", "optimizer": "adamw"}
        server.create_job(server.upload(bundle), per_round=9, over_selection=1, optimizers=AVERAGE, training=walking)
        server.advance()
        job = find_job(server.store, "job")
        manifest, needs = server.store.bundles.manifest(job.bundle), needs_of(server.store, job)
        whole = needs.fit(RoundSlot(0, tuple(range(len(manifest.units)))), ["onnx"], None)
        assert whole is not None
        least = min(needs.bytes("onnx", whole.cut, batch, whole.training) or 0 for batch, _ in manifest.shapes)
        devices = [server.device(f"pi {number}") for number in range(3)]
        here(server, devices[:2], memory_bytes=least)
        assert not [line for line in advice(server) if "too little memory" in line]
        here(server, devices[2:], memory_bytes=least - 1)
        assert [line for line in advice(server) if "whole model: pi 2, 1 of 3 devices here" in line]
        places = job.settings.slots(manifest, job.settings.invited)
        smallest = min(fit.needs for slot in places if (fit := needs.fit(slot, ["onnx"], least - 1)) is not None)
        here(server, devices[2:], memory_bytes=smallest)
        assert [line for line in advice(server) if "whole model: pi 2, 1 of 3 devices here" in line]
        here(server, devices[2:], memory_bytes=1)
        assert not [line for line in advice(server) if "too little memory" in line]  # it takes no part
        server.call("POST", "/v1/jobs/job/stop")
        server.create_job(job.bundle, name="auto", per_round=2, over_selection=1, optimizers=AVERAGE)
        server.advance()
        assert not [line for line in advice(server, "auto") if "too little memory" in line]


def test_passes_that_devices_leave_over_are_told(serving, exported_once, bundle):
    """Where the bundle adapts the last block alone, who could go deeper has no units to go deeper for."""
    last = exported_once("last", adapter=everywhere(last_blocks=1), measure=True)
    with serving() as server:
        for folder, name in ((last, "job"), (bundle, "deep")):
            training = {"estimator": "auto", "optimizer": "sgd"}
            server.create_job(server.upload(folder), name, per_round=9, over_selection=1, passes=2.0, training=training)
        server.advance()
        little = memory_of_none(needs_of(server.store, find_job(server.store, "job")))
        devices = [server.device(f"pi {number}") for number in range(3)]

        def told(name: str = "job") -> list[str]:
            later(server, 11)  # what devices can hold is looked up anew
            return [line for line in advice(server, name) if "spry export --last-blocks 0" in line]

        here(server, devices[:2])
        assert not told()
        here(server, devices[2:], memory_bytes=little)
        (line,) = told()
        assert line.startswith("1 of 3 devices here goes back through fewer blocks than others")
        assert not told("deep")
        here(server, devices[:2], memory_bytes=little)
        assert not told()  # all are alike

"""A job's curves sent elsewhere, while it runs and when it has ended."""

import json
import threading
import time

import pytest

from edge_client.client.client import Client
from edge_client.events import Event
from server.cli.connection import Access, Administrator
from server.cli.curves import told
from tests.server.cli.conftest import ROWS, TOKEN
from tests.server.sinks.test_sinks import in_mlflow, in_tensorboard, tracking

__all__ = ["tracking"]


def metrics(ok, job: str) -> dict:
    import os

    import httpx

    headers = {"Authorization": f"Bearer {os.environ['SPRY_ADMIN_TOKEN']}"}
    rows = httpx.get(f"{os.environ['SPRY_SERVER']}/v1/jobs/{job}/metrics", headers=headers).raise_for_status().json()
    return {(row["round"], row["name"]): pytest.approx(row["value"], rel=1e-6) for row in rows}


def test_after_the_fact_and_again(ok, wrong, taken_part, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    boards, runs = tmp_path / "boards", tmp_path / "runs"
    told = metrics(ok, taken_part)
    assert {name for _, name in told} >= {"loss", "reports", "seconds"}
    to = "job", "export", taken_part, "--to", f"tensorboard:{boards}"
    assert ok(*to) == f"{len(told)} new points of {taken_part} are in tensorboard:{boards}\n"
    assert json.loads(ok(*to, "--json")) == {"to": f"tensorboard:{boards}", "sent": 0, "state": "ended"}
    found = in_tensorboard(boards / taken_part)
    assert {key: value for key, (value, _) in found.items()} == told
    ends = {number: end for (number, name), (_, end) in found.items() if name == "loss"}
    assert ends[2] > ends[1] > 1e9  # each at its round's end
    ok("job", "export", taken_part, "--to", f"mlflow:{runs}")
    assert {key: value for key, (value, _) in in_mlflow(runs, taken_part).items()} == told
    assert "--to takes one of mlflow, tensorboard and a place" in wrong(
        "job", "export", taken_part, "--to", "nowhere:x"
    )


def test_a_server_of_mlflow_says_nothing_within_the_answer(ok, taken_part, tracking):
    known = metrics(ok, taken_part)
    answer = json.loads(ok("job", "export", taken_part, "--to", f"mlflow:{tracking}", "--json"))
    assert answer == {"to": f"mlflow:{tracking}", "sent": len(known), "state": "ended"}
    assert {key: value for key, (value, _) in in_mlflow(tracking, taken_part).items()} == known


def test_a_job_that_runs_is_followed_to_its_end(ok, spry, address, job, tmp_path):
    token = json.loads(ok("token", "create", "--json"))["token"]

    def take_part():
        client = Client(address, token, ROWS, home=tmp_path / "home", job=job["name"], name="pi", holdout=0, threads=1)
        client.run(rounds=2)
        client.close()

    device = threading.Thread(target=take_part)
    device.start()
    done = spry("job", "export", job["name"], "--to", f"tensorboard:{tmp_path}", "--follow", "--json")
    device.join()
    assert (done.code, json.loads(done.out)["state"]) == (0, "ended"), done.err
    told = metrics(ok, job["name"])
    assert max(number for number, _ in told) == 2
    assert {key: value for key, (value, _) in in_tensorboard(tmp_path / job["name"]).items()} == told


def test_of_rounds_that_are_settled_nothing_is_asked_again(ok, address, taken_part):
    job = json.loads(ok("job", "show", taken_part, "--json"))
    with Administrator(Access(address, TOKEN)) as administrator:
        whole = told(administrator, job)
        assert (whole.settled, {point.round for point in whole.points}) == (2, {1, 2})
        assert told(administrator, job, after=1).points == [point for point in whole.points if point.round == 2]
        assert told(administrator, job, after=2) == (([], True, 2))
        rounds = [row["number"] for row in administrator.get(f"/v1/jobs/{taken_part}/rounds", after=1)]
    assert rounds == [2]


def test_what_devices_measure_behind_the_last_step_is_waited_for(ok, spry, address, tiny, tmp_path):
    """The job has ended by then; what the first tells alone is no round's mean."""
    settings = {
        "rounds": 1, "per_round": 2, "minimum": 2, "over_selection": 1, "device_evaluation": 1,
        "training": {"mode": "iteration", "iterations": 1, "learning_rate": 0.1},
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(settings))
    made = json.loads(ok("job", "create", "late", "--bundle", tiny, "--settings", tmp_path / "job.json", "--json"))
    token = json.loads(ok("token", "create", "--uses", 2, "--json"))["token"]

    def take_part(number: int) -> None:
        def slowly(event: Event) -> None:
            if event.kind == "evaluated":
                time.sleep(2.5 * number)  # a device that takes its time over it

        home = tmp_path / f"home{number}"
        client = Client(address, token, ROWS[number:], home=home, job="late", holdout=0.3, threads=1, on_event=slowly)
        client.run(rounds=1)
        client.close()

    devices = [threading.Thread(target=take_part, args=(number,)) for number in range(2)]
    for device in devices:
        device.start()
    done = spry("job", "export", "late", "--to", f"tensorboard:{tmp_path}", "--follow", "--json")
    for device in devices:
        device.join()
    assert (done.code, json.loads(done.out)["state"]) == (0, "ended"), done.err
    known = metrics(ok, made["id"])
    assert known[1, "evaluated"] == 2
    assert (1, "accuracy_personal") in known
    assert {key: value for key, (value, _) in in_tensorboard(tmp_path / "late").items()} == known

"""Mode iteration, and a device whose process is killed in the middle of a round and started again."""

import json
import subprocess
import sys
import threading

import pytest

from tests.edge_client.conftest import PATIENCE, ROWS

STEPS = 6
SILENT = 61
"""Seconds; an iteration takes a minute at most."""


class Device:
    """`spry join` in a process of its own."""

    def __init__(self, fleet) -> None:
        self.log = fleet.folder / "device.log"
        data = fleet.folder / "device.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.command = [
            sys.executable, "-c", "from edge_client.commands.cli import main; main()", "join", "--json",
            "--server", fleet.address, "--token", fleet.token(), "--data", data, "--home", fleet.folder / "device",
            "--threads", "1", "--holdout", "0",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def steps(self) -> list[int]:
        """Return the steps that it has reported since it was started."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("}\n"))
        return [line["step"] for line in lines if line["event"] == "progress"]


@pytest.fixture
def device(fleet):
    device = Device(fleet)
    yield device
    device.kill()


def test_killed_between_steps_it_holds_nobody_up_and_comes_back(fleet, trainable, device):
    training = {"mode": "iteration", "iterations": STEPS}
    fleet.job(fleet.upload(trainable), rounds=1, per_round=2, over_selection=1, training=training)
    has_come, is_gone, is_back = threading.Event(), threading.Event(), threading.Event()

    def wait_for_it(event):
        fleet.events.append(event)
        waits_for = {2: is_gone, 5: is_back}.get(event.details.get("step"))
        if event.kind == "task":  # alone it would begin without the other
            waits_for = has_come
        if waits_for is not None:
            waits_for.wait(PATIENCE)

    other = threading.Thread(target=fleet.client(on_event=wait_for_it).run, kwargs={"rounds": 1})
    other.start()
    fleet.until(lambda: device.steps() == [1])
    has_come.set()
    fleet.until(lambda: device.steps() == [1, 2, 3])
    device.kill()
    is_gone.set()
    fleet.until(lambda: progress(fleet) == (3, 1, 2))  # the other one's fourth step; it is waited for
    store = fleet.app.state.services.store
    store.now = lambda now=store.now: now() + SILENT
    fleet.until(lambda: progress(fleet) == (5, 0, 1))
    device.start()
    fleet.until(lambda: device.steps() == [6])
    is_back.set()
    other.join(PATIENCE)
    assert fleet.ended()["version"] == STEPS
    assert [one["tasks"] for one in fleet.call("GET", "/v1/jobs/topics/rounds").json()] == [{"accepted": 2}]


def progress(fleet) -> tuple[int, int, int]:
    now = fleet.state()["progress"]
    return now["iteration"], now["reported"], now["wanted"]

"""Processes that outlive the command which started them."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from server.errors import ProjectError
from server.project.running import Running


@pytest.fixture
def running(tmp_path):
    found = Running(tmp_path / "running.json")
    yield found
    found.stop()


def waiting(running, name, tmp_path):
    """A command that goes on until it is ended."""
    running.start(name, tmp_path / f"{name}.log", "serve", "--port", "0", "--data", str(tmp_path / f"{name}-data"))


def until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_another_command_finds_and_ends_what_one_started(running, tmp_path):
    waiting(running, "one", tmp_path)
    other = Running(tmp_path / "running.json")
    assert other.names == ["one"]
    assert other.stop() == ["one"]
    assert running.names == []
    assert Running(tmp_path / "running.json").names == []


def test_a_number_that_was_given_again_is_not_taken_for_ours(running, tmp_path):
    waiting(running, "one", tmp_path)
    path = tmp_path / "running.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({"other": {**known["one"], "began": "before"}, "gone": {**known["one"], "pid": 2**22}}))
    stale = Running(path)
    assert stale.names == []
    assert stale.stop() == []
    assert running.names == ["one"]


def test_what_ended_by_itself_is_told_with_its_last_line(running, tmp_path):
    running.start("wrong", tmp_path / "wrong.log", "inspect", str(tmp_path / "nothing"))
    until(lambda: not running.names)
    assert "nothing" in running.ended["wrong"]
    with pytest.raises(ProjectError, match=r"wrong ended: .*nothing.*wrong\.log"):
        running.check("wrong")


def test_settings_of_this_process_do_not_go_along(running, tmp_path, monkeypatch):
    monkeypatch.setenv("SPRY_DATA_DIR", str(tmp_path / "elsewhere"))
    waiting(running, "one", tmp_path)
    pid = json.loads((tmp_path / "running.json").read_text())["one"]["pid"]
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"SPRY_DATA_DIR" not in environment


def test_a_killed_process_has_ended(running, tmp_path):
    waiting(running, "one", tmp_path)
    pid = json.loads((tmp_path / "running.json").read_text())["one"]["pid"]
    until(lambda: "running" in (tmp_path / "one.log").read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: running.names == [])
    assert running.ended == {"one": "killed, by the system where memory was short, or by somebody"}

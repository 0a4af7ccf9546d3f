"""`spry join` and `spry predict` as commands."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_client.events import Event
from edge_client.join import Reporter

RUN = "import sys; from edge_client.{} import *; import typer; app = typer.Typer(); app.command()({}); app()"


def command(module: str, function: str, *args: str, **options) -> subprocess.Popen:
    code = RUN.format(module, function)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *args], **pipes, **options)


def nowhere(data, home) -> list[str]:
    """Options of a client whose server does not answer."""
    return ["--server", "http://127.0.0.1:9", "--token", "t", "--data", str(data), "--home", str(home), "--json"]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "my.jsonl"
    path.write_text('{"text": "a", "label": 0}\n')
    return path


def test_events_as_lines_of_json(capsys):
    with Reporter(as_json=True) as tell:
        tell(Event("task", "round 1", {"round": 1}))
    found = json.loads(capsys.readouterr().out)
    assert (found["event"], found["message"], found["round"]) == ("task", "round 1", 1)
    assert found["time"] == pytest.approx(time.time(), abs=60)


def test_a_log_holds_few_lines_of_progress(capsys):
    with Reporter(as_json=False) as tell:
        for step in range(1, 101):
            tell(Event("progress", f"step {step}", {"step": step, "steps": 100}))
        tell(Event("uploaded", "done"))
    lines = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["step 1", "step 100", "done"]


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Reporter(as_json=False) as tell:
        tell(Event("task", "round [1]", {"round": 1}))
        tell(Event("progress", "step 1", {"step": 1, "steps": 2}))
        tell(Event("uploaded", "done"))
    assert "round [1]" in capsys.readouterr().err


def test_sigterm_ends_it_as_ctrl_c_does(data, tmp_path):
    args = (
        "--server",
        "http://127.0.0.1:9",
        "--token",
        "t",
        "--data",
        str(data),
        "--home",
        str(tmp_path / "h"),
        "--json",
    )
    with command("join", "join", *args) as running:
        first = json.loads(running.stdout.readline())
        assert first["event"] == "unreachable"
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
    assert running.returncode == 130


def test_an_idle_client_is_small(data, tmp_path):
    args = (
        "--server",
        "http://127.0.0.1:9",
        "--token",
        "t",
        "--data",
        str(data),
        "--home",
        str(tmp_path / "h"),
        "--json",
    )
    with command("join", "join", *args, env={**os.environ, "COVERAGE_PROCESS_START": ""}) as running:
        running.stdout.readline()
        status = Path(f"/proc/{running.pid}/status").read_text()
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert int(status.split("VmRSS:")[1].split()[0]) < 60_000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--hours", "late"), "hours must look like 22-6"),
        (("--max-memory", "much"), "must look like 200MB"),
        (("--bad-rows", "keep"), "expected refuse or skip"),
        (("--holdout", "2"), "must be from 0 to less than 1"),
        (("--runtime", "abacus"), "unknown runtime 'abacus'"),
        (("--data", "none.jsonl"), "does not exist"),
    ],
)
def test_wrong_options(data, tmp_path, args, message):
    given = "--server", "http://127.0.0.1:9", "--data", str(data), "--home", str(tmp_path / "h"), *args
    with command("join", "join", *given, env={**os.environ, "TERM": "dumb", "COLUMNS": "500"}) as running:
        _, error = running.communicate(timeout=60)
    assert message in " ".join(error.split())
    assert running.returncode


def test_prediction_without_a_job(tmp_path):
    with command("predict", "command", "it", "--home", str(tmp_path)) as running:
        _, error = running.communicate(timeout=60)
    assert "no server; take part in a round first" in " ".join(error.split())

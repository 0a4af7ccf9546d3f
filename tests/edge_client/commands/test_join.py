"""`spry join` and `spry predict` as commands."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_client.client.client import Idle
from edge_client.commands.membership.participation import IDLE_VARIABLE, handed_over, start_anew
from edge_client.commands.membership.reporter import Reporter
from edge_client.events import Event
from tests.edge_client.conftest import PATIENCE

ROOT = Path(__file__).parents[3]
RUN = (
    "import sys; from edge_client.commands.interrupts import end_as_interrupted; end_as_interrupted(); "
    "from edge_client.commands.{} import *; import typer; app = typer.Typer(); app.command()({}); app()"
)
"""A command alone, taking signals as `spry` does."""


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
        out, _ = running.communicate(timeout=PATIENCE)
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
    assert running.returncode == 130


def test_an_idle_client_is_small(data, tmp_path):
    # The instrument that measures the tests' coverage takes memory too.
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    with command("join", "join", *nowhere(data, tmp_path / "h"), env=bare) as running:
        running.stdout.readline()
        status = Path(f"/proc/{running.pid}/status").read_text()
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE)
    assert int(status.split("VmRSS:")[1].split()[0]) < 70_000


WHOLE = "from edge_client.commands.cli import main; main()"
"""The command as it is installed."""


def test_what_read_the_command_line_leaves_the_memory(data, tmp_path):
    """Under the same process id; whatever lies in the current folder is not imported."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported from the current folder')")
    bare = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    first = f"import sys; sys.path[:] = {[str(ROOT), *filter(None, sys.path)]}; {WHOLE}"
    given = [sys.executable, "-c", first, "join", *nowhere(data, tmp_path / "h")]
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True, env=bare, cwd=tmp_path) as running:
        assert json.loads(running.stdout.readline())["event"] == "unreachable"
        maps = Path(f"/proc/{running.pid}/maps").read_text()
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=PATIENCE)
    assert "pydantic" not in maps
    assert "multiarray" in maps
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
    assert running.returncode == 130


def test_errors_are_one_line_in_the_process_that_follows(data, tmp_path):
    given = [sys.executable, "-c", WHOLE, "join", *nowhere(data, tmp_path / "h"), "--trust", "nobody"]
    done = subprocess.run(given, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


def test_a_client_that_waits_after_training_starts_itself_anew(fleet, trainable, data, tmp_path):
    """Under the same process id, without the runtime in its memory, and without enrolling again."""
    fleet.job(fleet.upload(trainable), rounds=2)
    data.write_text("".join(json.dumps(row) + "\n" for row in fleet.rows))
    log = tmp_path / "log"
    short = "import edge_client.client.waits as waits; waits.LONG_SECONDS = 0.1; " + RUN.format("join", "join")
    options = "--server", fleet.address, "--token", fleet.token(), "--data", str(data), "--home", str(tmp_path / "h")
    with log.open("w") as out:
        running = subprocess.Popen([sys.executable, "-c", short, *options, "--json"], stdout=out)
    try:
        wait_until(lambda: fleet.state()["state"] == "ended")
        wait_until(lambda: "onnxruntime" not in Path(f"/proc/{running.pid}/maps").read_text())
        now = time.time()
        wait_until(lambda: (fleet.call("GET", "/v1/devices").json()[0]["last_seen"] or 0) > now)
        running.send_signal(signal.SIGTERM)
        running.wait(PATIENCE)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130
    kinds = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert (kinds[0], kinds.count("enrolled"), kinds.count("uploaded")) == ("enrolled", 1, 2)
    assert kinds[-2:] == ["waiting", "stopped"]


def wait_until(condition) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("handed", ["", "nonsense", '{"seconds": "long"}'])
def test_no_wait_is_handed_over(monkeypatch, handed):
    monkeypatch.setenv(IDLE_VARIABLE, handed)
    assert handed_over() is None
    assert IDLE_VARIABLE not in os.environ


def test_a_process_that_cannot_be_replaced_waits(capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    start_anew(Reporter(as_json=False), Idle(1.0))


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
        _, error = running.communicate(timeout=PATIENCE)
    assert message in " ".join(error.split())
    assert running.returncode


def test_prediction_without_a_job(tmp_path):
    with command("predict", "command", "it", "--home", str(tmp_path)) as running:
        _, error = running.communicate(timeout=PATIENCE)
    assert "no server; take part in a round first" in " ".join(error.split())

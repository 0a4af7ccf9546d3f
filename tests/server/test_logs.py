"""Test what a real server writes to its log."""

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx

from server.settings import Settings
from tests.test_journeys import fleet, rows


def lines(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_json(tiny, tmp_path):
    """A job of one round: enrolment, bundle, update; and what strangers ask."""
    server = fleet.Server(tmp_path, log_format="json", retry_seconds=0.2, tick_seconds=0.05)
    try:
        with server.administrator() as admin:
            bundle = admin.upload_bundle(tiny)
            training = {"batch": 2, "length": 8}
            admin.post("/v1/jobs", {"name": "news", "bundle": bundle,
                                    "settings": {"rounds": 1, "per_round": 1, "training": training}})  # fmt: skip
            token = admin.post("/v1/tokens", {"uses": 1})["token"]
            data = fleet.write_rows(tmp_path / "data.jsonl", rows(8, 0))
            client = fleet.Client(server, tmp_path / "client", data, token, "--rounds", "1")
            assert client.process.wait(300) == 0
            client.stop()
            until = time.monotonic() + 300
            while admin.get("/v1/jobs/news")["state"] != "ended":
                assert time.monotonic() < until
                time.sleep(0.05)
            headers = {"Authorization": "Bearer a-stranger-with-a-guess"}
            assert httpx.get(f"{server.url}/v1/jobs?token=in-a-query", headers=headers).status_code == 401
            key = next((tmp_path / "client").rglob("device.key")).read_text().strip().removeprefix("secret:")
    finally:
        server.stop()
    text = (tmp_path / "server.log").read_text()
    for secret in (fleet.TOKEN, token, key, "a-stranger-with-a-guess", "in-a-query"):
        assert secret not in text
    found = lines(tmp_path / "server.log")
    for line in found:
        assert {"time", "level", "logger", "message"} <= set(line)
        moment = datetime.fromisoformat(line["time"])
        assert moment.utcoffset() == timedelta(0)
        assert abs(datetime.now(timezone.utc) - moment) < timedelta(minutes=5)
        assert line["message"]
        assert "color_message" not in line
    enrolled = next(line for line in found if line.get("path") == "/v1/devices")
    assert {name: enrolled[name] for name in ("method", "status", "client", "level")} == {
        "method": "POST", "status": 201, "client": "127.0.0.1", "level": "INFO",
    }  # fmt: skip
    assert 0 < enrolled["seconds"] < 60
    assert next(line for line in found if line.get("status") == 401)["path"] == "/v1/jobs"
    rounds = [line for line in found if line.get("job") == "news" and "round" in line]
    assert [re.sub(": loss.*", "", line["message"]) for line in rounds] == [
        "job news: round 1 is open", "job news: round 1 is done",
    ]  # fmt: skip
    assert rounds[1]["loss"] > 0
    assert rounds[1]["reports"] == 1
    assert {"Application startup complete.", "Application shutdown complete."} <= {line["message"] for line in found}


CRASHING = """
import uvicorn
from server.app import app

@app.get("/crash")
def crash():
    raise RuntimeError("a defect")

uvicorn.run(app, port={port}, log_config=None)
"""


def test_exceptions_are_a_field(tmp_path):
    """In an application with a route that fails."""
    port = fleet.processes.free_port()
    server = fleet.Process(
        [sys.executable, "-c", CRASHING.format(port=port)], tmp_path / "log",
        SPRY_LOG_FORMAT="json", SPRY_DATA_DIR=str(tmp_path / "data"),
    )  # fmt: skip
    try:
        until = time.monotonic() + 300
        while True:
            assert time.monotonic() < until
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/crash").status_code == 500
                break
            except httpx.TransportError:
                time.sleep(0.1)
    finally:
        server.stop()
    found = [line for line in lines(tmp_path / "log") if "exception" in line]
    assert "RuntimeError: a defect" in found[0]["exception"]
    assert found[0]["message"] == "GET /crash"
    assert found[0]["level"] == "ERROR"


def test_every_worker_and_the_process_that_starts_them(tmp_path):
    port = fleet.processes.free_port()
    command = [
        *fleet.SPRY,
        "serve",
        "--json-logs",
        "--workers",
        "2",
        "--port",
        str(port),
        "--data",
        str(tmp_path / "d"),
    ]
    server = fleet.Process(command, tmp_path / "log")
    try:
        until = time.monotonic() + 300
        while (tmp_path / "log").read_text().count("Application startup complete.") < 2:
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.1)
    finally:
        server.stop()
    messages = [line["message"] for line in lines(tmp_path / "log")]
    assert any("parent process" in message for message in messages)
    assert sum("Started server process" in message for message in messages) == 2


def test_plain_lines_tell_of_rounds_too(tiny, tmp_path):
    server = fleet.Server(tmp_path, tick_seconds=0.05)
    try:
        with server.administrator() as admin:
            bundle = admin.upload_bundle(tiny)
            admin.post("/v1/jobs", {"name": "news", "bundle": bundle,
                                    "settings": {"training": {"batch": 2, "length": 8}}})  # fmt: skip
            until = time.monotonic() + 300
            while "job news: round 1 is open" not in (tmp_path / "server.log").read_text():
                assert time.monotonic() < until
                time.sleep(0.05)
    finally:
        server.stop()
    text = (tmp_path / "server.log").read_text()
    assert text.count("round 1 is open") == 1
    assert re.search("^INFO: +job news: round 1 is open$", text, re.MULTILINE)


def test_a_format_that_there_is_not(tmp_path):
    command = [*fleet.SPRY, "serve", "--data", str(tmp_path / "d")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"SPRY_LOG_FORMAT": "xml"}
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "SPRY_LOG_FORMAT" in done.stderr
    assert Settings(data_dir=tmp_path).log_format == "plain"

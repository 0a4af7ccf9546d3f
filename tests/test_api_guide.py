"""The commands of docs/api.md against a real server, in their order, on the tests' small bundle."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from edge_client.bundle.folder import Bundle

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
SPRY = [sys.executable, "-c", "from edge_client.commands.cli import main; main()"]
PATIENCE = 600
"""Seconds until something hangs; a busy machine is slow."""


@pytest.fixture
def place(bundle, tmp_path) -> Path:
    shutil.copytree(bundle, tmp_path / "bundle")
    return tmp_path


@pytest.fixture
def port(place):
    """Return the port of a server that runs in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*SPRY, "serve", "--port", str(port)], cwd=place, stderr=subprocess.PIPE) as server:
        try:
            _wait_for(server, f"http://127.0.0.1:{port}/healthz")
            yield port
        finally:
            server.send_signal(signal.SIGINT)
            _, told = server.communicate(timeout=PATIENCE)
    assert server.returncode == 0
    assert b"Traceback" not in told


def _wait_for(server: subprocess.Popen, url: str) -> None:
    until = time.monotonic() + PATIENCE
    while not _answers(url):
        assert server.poll() is None, server.stderr.read()
        assert time.monotonic() < until, f"{url} does not answer"
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


def blocks(port: int, folder: Path) -> list[tuple[str, str]]:
    """The page's commands by language, for the server's port and the bundle's shape."""
    batch, length = Bundle.open(folder / "bundle").manifest.shapes[0]
    shape = f'"batch": {batch}, "length": {length}'
    assert '"batch": 8, "length": 64' in PAGE
    page = PAGE.replace(":8000", f":{port}").replace('"batch": 8, "length": 64', shape)
    return re.findall(r"```(sh|python)\n(.*?)```", page, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_of_the_guide_run(place, port):
    script = "set -eu\n"
    for number, (language, text) in enumerate(blocks(port, place)):
        (place / f"{number}.py").write_text(text)
        command = text if language == "sh" else f"python3 {number}.py"
        script += f"echo '=== {number}'\n{command.replace('python3', sys.executable)}\necho\n"
    environment = os.environ | {"no_proxy": "127.0.0.1"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.split(r"^=== \d+\n", done.stdout, flags=re.MULTILINE)[1:]
    who, refused, job, cost, device, note, invitation, followed, python, adapter = said
    assert who.split() == ["ok", '{"name":"admin","role":"administrator"}[]']
    assert '"code":"unknown"' in refused
    assert job.strip().endswith("}running")
    assert "passes" in cost
    checked_in, devices = _split(device)
    assert json.loads(checked_in)["task"]["job_name"] == "news"
    assert json.loads(devices)[0]["name"] == "board 1"
    assert invitation.startswith("spry://join?server=https%3A%2F%2Fspry.example%3A8443&token=")
    assert note.strip() == "in the cellar"
    assert 'data: {"id"' in followed
    assert "ended 0 enough {}" in python
    assert "409 ended job news has ended (enough); create another" in python
    assert "adapter_model.safetensors" in adapter


def _split(text: str) -> tuple[str, str]:
    """Two JSON texts without a line between them."""
    _, end = json.JSONDecoder().raw_decode(text.strip())
    return text.strip()[:end], text.strip()[end:]

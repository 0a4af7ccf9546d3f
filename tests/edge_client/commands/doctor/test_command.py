"""The command: what it prints, and with which code it ends."""

import json
import os
import subprocess
import sys

import pytest

from edge_client.commands import cli
from edge_client.distribution import install_command


@pytest.fixture
def doctor(capsys, monkeypatch, tmp_path):
    """Runs it in an empty folder; gives its exit code and what it printed."""
    for name in ("SPRY_SERVER", "SPRY_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.run(["doctor", "--home", str(tmp_path / "home"), *map(str, args)])
        return code, capsys.readouterr().out

    return run


def test_a_healthy_machine(doctor):
    code, out = doctor()
    assert code == 0
    assert "runtime onnx" in out
    assert "problem: 0" in out
    assert "--server URL" in out
    assert "database" not in out


def test_a_problem_ends_with_1_and_says_what_to_do(doctor):
    code, out = doctor("--server", "http://127.0.0.1:9")
    assert code == 1
    (line,) = [line for line in out.splitlines() if line.startswith("problem ")]
    assert "http://127.0.0.1:9 gives no answer" in line
    assert "curl -v" in out


def test_for_scripts(doctor):
    code, out = doctor("--server", "http://127.0.0.1:9", "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (1, False)
    assert {check["state"] for check in found["checks"]} >= {"ok", "problem"}
    assert all(set(check) == {"name", "state", "found", "advice"} for check in found["checks"])


def test_a_servers_folder_is_looked_at_where_there_is_one(doctor, tmp_path):
    (tmp_path / "spry-data").mkdir()
    code, out = doctor()
    assert code == 0
    assert "data folder" in out
    assert "made at the first start" in out
    assert list((tmp_path / "spry-data").iterdir()) == []


def test_an_address_that_is_none(doctor, capsys):
    code, _ = doctor("--server", "ftp://a")
    assert code == 2


DEVICE = """
import sys
for name in ("torch", "executorch", "fastapi", "sqlalchemy", "pydantic_settings", "uvicorn"):
    sys.modules[name] = None
from edge_client.commands.cli import main
main()
"""


def test_a_device_has_neither_torch_nor_a_servers_libraries(tmp_path):
    """In a process that cannot import them."""
    command = [sys.executable, "-c", DEVICE, "doctor", "--json", "--home", str(tmp_path)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SPRY_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=plain, timeout=300)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stderr
    assert found["runtime onnx"]["found"].endswith("loads")
    assert "not installed" in found["runtime torchscript"]["found"]
    told = subprocess.run(
        [*command, "--data", str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path, env=plain,
        timeout=300,
    )  # fmt: skip
    assert told.returncode == 1
    (problem,) = [check for check in json.loads(told.stdout)["checks"] if check["state"] == "problem"]
    assert problem["advice"] == f"run: {install_command('server')}"

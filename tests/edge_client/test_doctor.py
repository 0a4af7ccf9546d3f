"""The command: what it prints, and with which code it ends."""

import json

import pytest

from edge_client import cli


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

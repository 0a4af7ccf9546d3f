"""`spry install-service`: what it understands, writes and refuses."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.commands import cli
from edge_client.commands.service.command import SYSTEMD, UnitFolders, install, service_of, understood
from edge_client.errors import SpryError

URL = "https://spry.example.org"


@pytest.fixture
def spry(capsys, monkeypatch, tmp_path):
    """Runs the command with a home of the test's own; gives exit code, output and errors."""
    for name in ("SPRY_SERVER", "SPRY_TOKEN", "SPRY_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my data.jsonl").write_text('{"text": "a", "label": 0}\n')

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(["install-service", *args])
        return code, *capsys.readouterr()

    return run


JOIN = "join", "--server", URL, "--data", "my data.jsonl"


def test_the_unit_of_a_device(spry, tmp_path):
    code, unit, _ = spry(*JOIN, "--token", "a-secret", "--max-memory", "200MB", "--only-charging", "--print",
                         "--run-as", "daemon")  # fmt: skip
    assert code == 0
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert line == (
        f'ExecStart=:{sys.executable} -m edge_client join --server {URL} --data "{tmp_path}/my data.jsonl" '
        "--only-charging --max-memory 200MB --home /var/lib/spry-join"
    )
    assert "a-secret" not in unit
    assert "MemoryMax=350000000" in unit
    assert "EnvironmentFile=-/etc/spry/spry-join.env" in unit


def test_options_of_its_own_may_stand_anywhere(spry):
    before = spry("--print", "--run-as", "daemon", "--memory", "1GB", *JOIN)
    assert before == spry(*JOIN, "--memory", "1GB", "--run-as", "daemon", "--print")
    assert "MemoryMax=1000000000" in before[1]


def test_the_unit_of_a_server(spry):
    code, unit, _ = spry("serve", "--host", "0.0.0.0", "--port", "443", "--plain-http", "--data", "kept", "--print",
                         "--run-as", "daemon")  # fmt: skip
    assert code == 0
    assert f"--data {Path.cwd() / 'kept'} " in unit
    assert f"ReadWritePaths={Path.cwd() / 'kept'}" in unit
    assert "AmbientCapabilities=CAP_NET_BIND_SERVICE" in unit
    assert "LimitNOFILE=65536" in unit
    assert "/kept/../" not in spry("serve", "--data", "kept/../kept", "--print", "--run-as", "daemon")[1]


def test_an_environment_that_systemd_does_not_start(spry, monkeypatch):
    monkeypatch.setattr("sys.executable", "/home/pi/it's/bin/python")
    code, _, err = spry(*JOIN, "--print", "--run-as", "daemon")
    assert code == 2
    assert "move the environment" in err


def test_what_the_unit_runs_is_the_command(tmp_path):
    """The same interpreter, in another folder, knows the same options."""
    done = subprocess.run(
        [sys.executable, "-m", "edge_client", "join", "--help"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0
    assert "--max-memory" in done.stdout


def test_a_device_that_was_invited(spry, tmp_path):
    """The token of the line beside a QR code stands in no unit, which everybody may read."""
    line = f"spry://join?server={URL}&token=a-secret"
    code, unit, _ = spry("join", line, "--data", str(tmp_path / "my data.jsonl"), "--print", "--run-as", "daemon")
    assert code == 0
    assert f"join --server {URL} --data" in unit
    assert "a-secret" not in unit


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("predict",), "a service runs join or serve, got 'predict'"),
        (("join", "--server", URL, "--dta", "my data.jsonl"), "--dta"),
        (("join", "--data", "my data.jsonl"), "--server"),
        (("join", "--server", "spry.example.org", "--data", "my data.jsonl"), "is no address"),
        (("join", "--server", URL, "--data", "none.jsonl"), "which does not exist"),
        ((*JOIN, "--unit", "../evil"), "a unit's name has letters"),
        ((*JOIN, "--run-as", "nobody-of-that-name"), "there is no user"),
        ((*JOIN, "--memory", "much"), "must look like 200MB"),
    ],
)
def test_what_is_refused(spry, args, message):
    run_as = () if "--run-as" in args else ("--run-as", "daemon")
    code, out, err = spry(*args, *run_as, "--print")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.skipif(SYSTEMD.is_dir(), reason="systemd runs here")
def test_a_machine_without_systemd(spry, tmp_path):
    code, _, err = spry(*JOIN, "--user")
    assert code == 2
    assert "does not run systemd; --print shows the unit" in err
    assert not (tmp_path / ".config").exists()


def test_the_whole_machine_needs_root(spry, monkeypatch, tmp_path):
    monkeypatch.setattr("edge_client.commands.service.command.SYSTEMD", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    code, _, err = spry(*JOIN)
    assert code == 2
    assert "needs root: run it as sudo" in err
    assert "or give --user" in err


def test_a_users_service(spry, monkeypatch, tmp_path):
    monkeypatch.setattr("edge_client.commands.service.command.SYSTEMD", tmp_path)
    code, _, err = spry(*JOIN, "--user")
    assert (code, "give --token, or --home" in err) == (2, True)
    assert not (tmp_path / ".config").exists()
    code, out, _ = spry(*JOIN, "--token", "a-secret", "--user")
    assert code == 0
    unit = tmp_path / ".config" / "systemd" / "user" / "spry-join.service"
    secrets = tmp_path / ".config" / "spry" / "spry-join.env"
    assert "a-secret" not in unit.read_text()
    assert secrets.read_text() == 'SPRY_TOKEN="a-secret"\n'
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert (tmp_path / ".local" / "share" / "spry").is_dir()
    assert "systemctl --user enable --now spry-join" in out
    assert "enable-linger" in out

    code, _, err = spry(*JOIN, "--user")
    assert (code, "--overwrite" in err) == (2, True)
    assert spry(*JOIN, "--user", "--overwrite", "--job", "news")[0] == 0
    assert "--job news" in unit.read_text()
    assert secrets.is_file()  # no token was given: the one that is there stays


def test_starting_tells_what_systemctl_says(spry, monkeypatch, tmp_path):
    """The program on the path is one that fails, as systemctl does where no manager runs."""
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho Failed to connect to bus >&2\nexit 1\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("edge_client.commands.service.command.SYSTEMD", tmp_path)
    enrolled = tmp_path / ".local" / "share" / "spry" / "spry.example.org" / "identity.json"
    enrolled.parent.mkdir(parents=True)
    enrolled.touch()
    code, _, err = spry(*JOIN, "--user", "--start")
    assert code == 2
    assert "Failed to connect to bus; the unit is written" in err


def test_a_machines_service(spry, tmp_path):
    """Below another root than the machine's own."""
    place = UnitFolders(tmp_path / "units", tmp_path / "secrets", user=False)
    wanted = understood("join", [*JOIN[1:], "--token", "a-secret"])
    found = service_of(wanted, "spry-join", place, "daemon", None)
    path = install(found, "spry-join", place, "a-secret", overwrite=False)
    assert path.read_text() == found.text()
    assert stat.S_IMODE((place.secrets / "spry-join.env").stat().st_mode) == 0o600
    with pytest.raises(SpryError, match="--overwrite"):
        install(found, "spry-join", place, None, overwrite=False)


def test_a_server_where_its_libraries_are_missing(tmp_path):
    """In a process that cannot import them."""
    code = "import sys; sys.modules['starlette'] = None; from edge_client.commands.cli import main; main()"
    command = [sys.executable, "-c", code, "install-service", "serve", "--print", "--run-as", "daemon"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: spry serve needs the extra 'server'")

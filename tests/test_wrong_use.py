"""Test what a stranger does wrong, with every command: one line that says what to do, never a traceback."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from starlette.testclient import TestClient

from edge_client.commands import cli
from server.app import create_app
from server.errors import ServerConfigError
from server.settings import Settings
from server.storage.store import Store

SPRY = [sys.executable, "-c", "from edge_client.commands.cli import main; main()"]
# The administrator of a machine may read everything; these tests are about users who may not.
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
NOWHERE = "http://127.0.0.1:9"
can_drop = pytest.mark.skipif(bool(UNPRIVILEGED) and shutil.which("setpriv") is None, reason="needs setpriv")


def environment(variables: dict) -> dict[str, str]:
    """Return the environment of a user who has set nothing else of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPRY_")}
    return kept | {"TERM": "dumb", "COLUMNS": "300", **{name: str(value) for name, value in variables.items()}}


def line(code: int, told: str) -> str:
    """The one line that a command must end with."""
    assert code == 2, told
    assert "Traceback" not in told, told
    lines = told.strip().splitlines()
    assert len(lines) == 1, told
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.fixture
def wrong(tmp_path, monkeypatch, capsys):
    """Run `spry` in an empty folder; gives the one line that it must end with."""
    monkeypatch.chdir(tmp_path)

    def run(*args, **variables) -> str:
        with patch.dict(os.environ, environment(variables), clear=True):
            code = cli.run([str(arg) for arg in args])
        return line(code, capsys.readouterr().err)

    return run


@pytest.fixture
def wrong_alone(tmp_path):
    """The same in a process of its own: with other rights, and whatever libraries say as they are loaded."""

    def run(*args, prefix=(), **variables) -> str:
        command = [*prefix, *SPRY, *map(str, args)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(variables), capture_output=True, text=True, timeout=300, check=False
        )
        return line(done.returncode, done.stderr)

    return run


@pytest.fixture
def rows(tmp_path) -> Path:
    path = tmp_path / "my.jsonl"
    path.write_text('{"text": "ice on the lake", "label": "no"}\n' * 3)
    return path


@contextmanager
def closed(path: Path, mode: int):
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    try:
        yield path
    finally:
        path.chmod(before)


# --- flags, arguments, types ---


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["frob"], "No such command 'frob' (see `spry --help`)"),
        (["--frob"], "No such option: --frob (see `spry --help`)"),
        (
            ["export", "x", "--out", "y", "--dimension", "16"],
            "--dimension is gone: it belonged to the adapters pairs and",
        ),
        (["export"], "Missing argument 'model' (see `spry export --help`)"),
        (["export", "x", "--out", "o", "--workers", "-1"], "Invalid value for '--workers'"),
        (["inspect"], "Missing argument 'bundle'"),
        (["bench", "step", "nowhere", "--rounds", "0"], "Invalid value for '--rounds'"),
        (["join", "--server", NOWHERE], "Missing option '--data'"),
        (["join", "--data", "my.jsonl"], "no server is named: give --server, or the line beside the QR code"),
        (["join", "spry://join?server=x", "--data", "my.jsonl"], "is no invitation: expected spry://join?server=…"),
        (["predict"], "Missing argument 'texts'"),
        (["serve", "--port", "80x"], "Invalid value for '--port'"),
        (["serve", "--port", "99999"], "Invalid value for '--port'"),
        (["serve", "--workers", "0"], "Invalid value for '--workers'"),
        (["job", "create"], "Missing argument 'name'"),
        (["token", "create", "--expires", "soon", "--admin-token", "x"], "--expires takes a number and one of"),
        (["devices", "revoke"], "Missing argument"),
        (["adapter", "download", "news"], "Missing option '--out'"),
        (["merge", "a", "b", "--out", "c", "--task", "x"], "--task must be one of seq-cls, qa, "),
    ],
)
def test_words_that_no_command_knows(wrong, args, message):
    assert message in wrong(*args)


@pytest.mark.parametrize("args", [["frob"], ["export"], ["serve", "--port", "80x"]])
def test_a_process_says_nothing_else(wrong, wrong_alone, args):
    """The other tests here ask for the line alone, in this process."""
    assert wrong_alone(*args) == wrong(*args)


# --- files ---


def test_a_file_where_a_folder_belongs(wrong, wrong_alone, rows, tmp_path):
    told = "Not a directory: my.jsonl/127.0.0.1_9-"
    said = wrong("join", "--server", NOWHERE, "--token", "x", "--data", rows, "--home", rows.name, "--once")
    assert said.startswith(told)
    assert said.endswith("; a file stands where a folder is expected: choose another place")
    assert "cannot be used: File exists; " in wrong("serve", "--port", "0", "--data", rows)
    assert "is a file, so no bundle can be written below it" in wrong_alone("export", tmp_path, "--out", rows / "b")
    assert "is not a folder; choose another --out" in wrong("adapter", "download", "x", "--out", rows)
    assert "holds no adapter_config.json" in wrong("merge", rows, "x", "--out", "m")


def test_a_folder_where_a_file_belongs(wrong, bundle, tmp_path):
    create = "job", "create", "x", "--bundle", bundle, "--server", NOWHERE, "--admin-token", "x"
    assert "is not a file; give a .jsonl or .csv file" in wrong("join", "--server", NOWHERE, "--data", tmp_path)
    assert f"held-out examples {bundle} cannot be read: Is a directory" in wrong(*create, "--held-out", bundle)
    assert "cannot be read as JSON" in wrong(*create, "--settings", bundle)
    assert "cannot be read as certificates" in wrong(*create, "--ca", tmp_path / "none.pem")
    assert f"{tmp_path}/manifest.json does not exist" in wrong("inspect", tmp_path)


@can_drop
def test_files_of_somebody_else(wrong_alone, bundle, rows, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    join = "join", "--server", NOWHERE, "--token", "x", "--once"
    with closed(rows, 0):
        assert "my.jsonl" in wrong_alone(*join, "--data", rows, prefix=UNPRIVILEGED)
    with closed(copy / "tokenizer.json", 0):
        said = wrong_alone("inspect", copy, prefix=UNPRIVILEGED)
    assert said == f"Permission denied: {copy}/tokenizer.json; choose another place, or get the right to this one"
    with closed(theirs, 0o555):
        assert "Permission denied: theirs/" in wrong_alone(
            *join, "--data", rows, "--home", "theirs", prefix=UNPRIVILEGED
        )
        said = wrong_alone("serve", "--port", "0", "--data", "theirs", prefix=UNPRIVILEGED)
        assert "theirs cannot be used: Permission denied; free space there, or choose another with --data" in said
        assert "cannot be written to" in wrong_alone("export", rows, "--out", theirs / "b", prefix=UNPRIVILEGED)


def test_damaged_bundles(wrong, bundle, tmp_path):
    whole = shutil.copytree(bundle, tmp_path / "bundle")
    tokenizer = whole / "tokenizer.json"
    content = tokenizer.read_bytes()
    tokenizer.write_bytes(content[:-1])
    assert "tokenizer.json is truncated: expected" in wrong("inspect", whole)
    tokenizer.write_bytes(b"x" + content[1:])
    assert "tokenizer.json is corrupt: expected sha256" in wrong("inspect", whole)
    (whole / "manifest.json").write_text("{")
    assert "manifest.json is damaged (Input data was truncated)" in wrong("inspect", whole)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB, where one may be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk(wrong_alone, small_disk):
    (small_disk / "fill").write_bytes(bytes(1 << 20))
    said = wrong_alone("serve", "--port", "0", "--data", small_disk / "data")
    assert "free space there" in said or "database or disk is full" in said


def test_a_server_on_a_full_disk_leaves_nothing_in_its_own_way(small_disk):
    """At whatever file the disk is full: it says so, holds nothing open, and starts once there is room."""
    fill, settings = small_disk / "fill", Settings(data_dir=small_disk / "data", background=False)
    for left in range(0, 128, 4):
        fill.write_bytes(bytes(shutil.disk_usage(small_disk).free - left * 1024))
        with pytest.raises(ServerConfigError, match=r"free space there|the database does not answer"):
            Store(settings)
        opened = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
        assert not [path for path in opened if path.is_relative_to(small_disk)]
        fill.unlink()
    Store(settings).close()


def test_a_merge_onto_a_full_disk(wrong_alone, bundle, model_folder, small_disk):
    (small_disk / "fill").write_bytes(bytes((1 << 20) - (1 << 15)))
    out = small_disk / "merged"
    said = wrong_alone("merge", bundle / "adapter", model_folder, "--labels", "no,maybe,yes", "--out", out, "--quiet")
    assert said.startswith(f"{out} cannot be written (")
    assert "No space left on device" in said
    assert not out.exists()


def test_a_server_whose_disk_fills_up(small_disk, tmp_path, caplog):
    token = "an-administrator-of-these-tests"
    settings = Settings(data_dir=small_disk, admin_token=token, background=False)
    with TestClient(create_app(settings), raise_server_exceptions=False) as http:
        used = shutil.disk_usage(small_disk)
        (small_disk / "fill").write_bytes(bytes(used.free))
        answers = [
            http.post("/v1/tokens", json={}, headers={"Authorization": f"Bearer {token}"}),
            http.put(f"/v1/held-out/{'0' * 64}", content=bytes(1 << 16), headers={"Authorization": f"Bearer {token}"}),
        ]
        for answer in answers:
            assert answer.status_code == 507, answer.text
            assert answer.json()["code"] == "busy"
            assert answer.headers["retry-after"] == "60"
        (small_disk / "fill").unlink()
        assert http.post("/v1/tokens", json={}, headers={"Authorization": f"Bearer {token}"}).status_code == 201
    told = [record for record in caplog.records if record.name == "spry.server"]
    assert [record.exc_info for record in told] == [None, None]
    assert "the disk is full; free space in the data folder" in told[0].getMessage()


# --- Ctrl-C ---


@pytest.mark.parametrize(
    "args",
    [["job", "show", "x", "--follow"], ["adapter", "download", "x", "--out", "a"]],
)
def test_a_command_that_waits_for_an_answer_is_stopped(args, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [*SPRY, *args, "--server", where, "--admin-token", "x"]
        running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with running, silent.accept()[0]:
            running.send_signal(signal.SIGINT)
            output, error = running.communicate(timeout=300)
    assert (running.returncode, output, error) == (130, b"", b"")


# --- servers that are not there, or not started ---


def test_a_server_that_is_not_there(wrong):
    for command in (["job", "list"], ["token", "list"], ["devices", "list"], ["job", "show", "x", "--follow"]):
        said = wrong(*command, "--server", NOWHERE, "--admin-token", "x")
        assert said.startswith(f"no answer from {NOWHERE} ([Errno 111] Connection refused); is the server running")
    assert "is no address of a server" in wrong("job", "list", "--server", "nonsense", "--admin-token", "x")
    assert "no administrator's token: there is no spry-data/admin-token; give --admin-token" in wrong("job", "list")


def test_a_port_in_use(wrong):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = wrong("serve", "--port", port)
    assert said.startswith(f"cannot listen on 127.0.0.1, port {port}: Address already in use; end what listens there")


def test_an_address_that_is_not_this_machines(wrong):
    assert "cannot listen on 192.0.2.1, port 8000" in wrong("serve", "--host", "192.0.2.1", "--plain-http")


def test_settings_that_cannot_be_read(wrong, tmp_path):
    broken = tmp_path / "spry.toml"
    broken.write_text("not toml")
    assert f"SPRY_CONFIG names {broken}, which is no TOML file" in wrong("serve", SPRY_CONFIG=broken)
    broken.write_text("speed = 3")
    assert "SPEED" in wrong("serve", SPRY_CONFIG=broken)
    refused = wrong("serve", "--port", "0", SPRY_DATABASE_URL="postgresql://nobody@127.0.0.1:9/x")
    assert refused.startswith("the database does not answer: ")


def test_names_that_fit_no_address(tmp_path):
    from pydantic import ValidationError

    from server.web.routes.jobs import NewJob

    for name in ("a/b", "..", "two\nlines"):
        with pytest.raises(ValidationError, match="becomes a part of addresses"):
            NewJob(name=name, bundle="0" * 64)
    assert NewJob(name="ten boards, Köln", bundle="0" * 64).name == "ten boards, Köln"


def test_what_a_command_can_know_at_once_is_said_first(wrong):
    """Before minutes of an export, and before a server is asked."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1, port {port}" in wrong("demo", "--port", port)
    assert "nosuch" in wrong("job", "create", "news", "--bundle", "nosuch", "--server", NOWHERE)

"""A project from its file to a learned adapter: real processes, as a new user starts them."""

import json
import os
import re
import signal
from types import SimpleNamespace

import httpx
import msgspec
import pytest

from edge_client.commands import cli
from server.cli.connection import Access
from server.errors import ProjectError
from server.project.file import read, written
from server.project.folder import Project
from server.project.running import Running
from server.start.local import start_server
from tests.tickets import table, tickets
from tests.warm import python


@pytest.fixture(scope="module")
def spry():
    def run(*args):
        return cli.run([str(arg) for arg in args])

    return run


@pytest.fixture(scope="module")
def project(spry, model_folder, tmp_path_factory):
    """One that has been up, with two devices, to the end of its job."""
    work = tmp_path_factory.mktemp("projects")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setattr("sys.executable", python())
        rows = table(work / "rows.csv", ("sentence", "category"), tickets(48))
        assert spry("new", "mine", "--data", rows, "--model", model_folder) == 0
        folder = work / "mine"
        change(folder, model={"options": ("--no-measure", "--verify", "none")}, job={"rounds": 2})
        patch.chdir(folder)
        assert spry("up", "--try", 2) == 0
        yield Project(folder)
        spry("down")


def change(folder, **parts):
    """Edit the file as people do."""
    path = folder / "spry.toml"
    file = read(path)
    replaced = {name: msgspec.structs.replace(getattr(file, name), **changes) for name, changes in parts.items()}
    path.write_text(written(msgspec.structs.replace(file, **replaced), {}))


@pytest.fixture
def told(project, spry, monkeypatch, capsys):
    """Runs a command in the project."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args):
        capsys.readouterr()
        code = spry(*args)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_the_job_has_ended_and_is_measured(told):
    found = json.loads(told("status", "--json").out)
    assert found["running"] == ["server", "trial-1", "trial-2"]
    assert found["ended"] == {}
    assert (found["job"]["state"], found["job"]["done"]) == ("ended", 2)
    assert "accuracy" in found["job"]["metrics"]


def test_commands_in_the_project_find_its_server(told, project, tmp_path, monkeypatch):
    assert "mine: ended, 2 of 2 rounds" in told("job", "show", "mine").out
    assert told("adapter", "download", "mine", "--out", str(tmp_path / "adapter")).code == 0
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    monkeypatch.chdir(project.devices)
    assert Access.of(None, None, None).url == project.url


def test_up_again_leaves_what_is_there(told):
    again = json.loads(told("up", "--json").out)
    assert again["job"]["name"] == "mine"
    assert again["running"] == ["server", "trial-1", "trial-2"]
    assert json.loads(told("up", "--json").out)["token"] == again["token"]


def test_a_device_joins_by_the_line_that_is_shown(told, project, spry):
    """Its token names the publisher; a bundle of anybody else would not be taken."""
    token = json.loads(told("up", "--json").out)["token"]
    secret, key = token.split(".")
    assert secret
    assert key == (project.kept / "publisher.key.pub").read_text().strip()
    assert f"spry join --server {project.url} --token {token}" in told("up", "--detach").err


def test_what_was_learned_is_told_beside_one_place(told):
    done = told("up")
    assert done.code == 0
    for what in ("together", "each device alone", "all rows in one place"):
        assert re.search(rf"{what} 0\.\d{{3}}|{what} 1\.000", done.err), what


def test_more_rounds_go_on_with_the_job(told, project):
    change(project.folder, job={"rounds": 3})
    again = json.loads(told("up", "--json").out)
    assert (again["job"]["name"], again["job"]["done"]) == ("mine", 3)
    assert 3 <= again["job"]["version"] <= 5  # each of two ends may have published the best round once more


def test_other_settings_are_another_job(told, project):
    """One of its devices is killed meanwhile, which is told."""
    change(project.folder, job={"rounds": 1, "per_round": 1})
    os.kill(json.loads((project.kept / "running.json").read_text())["trial-2"]["pid"], signal.SIGKILL)
    done = told("up", "--json")
    again = json.loads(done.out)
    assert (again["job"]["name"], again["job"]["settings"]["rounds"]) == ("mine-2", 1)
    assert "! trial-2 ended: killed" in done.err
    assert json.loads(told("status", "--json").out)["job"]["name"] == "mine-2"


def jobs(told):
    return {(job["name"], job["id"], job["done"]) for job in json.loads(told("job", "list", "--json").out)}


def test_down_and_up_go_on_with_what_was_learned(told, project):
    before = jobs(told)
    assert told("down").out.startswith("ended: server")
    down = told("status")
    assert (down.code, "not running" in down.out) == (1, True)
    assert told("down").out == "nothing was running\n"
    assert Running(project.kept / "running.json").names == []
    assert told("up", "--detach").code == 0
    assert jobs(told) == before
    assert before


def test_a_project_of_a_port_that_is_taken(told, project, tmp_path):
    """Its bundle is there already. Where devices may know its server nothing is changed, else it gets another port."""
    folder = tmp_path / "other"
    (folder / ".spry").mkdir(parents=True)
    (folder / "spry.toml").write_bytes((project.folder / "spry.toml").read_bytes())
    for name in ("bundle", "data"):
        (folder / name).symlink_to(project.folder / name)
    for name in ("bundle.recipe", "publisher.key", "publisher.key.pub"):
        (folder / ".spry" / name).write_bytes((project.kept / name).read_bytes())
    (folder / "server").mkdir()
    refused = told("up", "--project", folder)
    assert refused.code == 2
    assert "the server cannot listen on 127.0.0.1, port" in refused.err
    assert not (folder / "logs" / "export.log").exists()
    taken = read(folder / "spry.toml").server.port
    (folder / "server").rmdir()
    try:
        begun = told("up", "--project", folder, "--detach")
        port = read(folder / "spry.toml").server.port
        assert (begun.code, port != taken) == (0, True)
        assert f"Port {taken} is another program's: spry.toml has {port} now" in begun.err
        assert f"http://127.0.0.1:{port}" in begun.out + begun.err
    finally:
        told("down", "--project", folder)
    changed = (folder / "spry.toml").read_text()
    assert changed.replace(f"port = {port}", f"port = {taken}") == (project.folder / "spry.toml").read_text()


def test_a_port_that_is_taken_while_the_server_starts(told, project, tmp_path):
    """Another server answers there; it is not taken for the project's."""
    folder = tmp_path / "late"
    folder.mkdir()
    (folder / "spry.toml").write_bytes((project.folder / "spry.toml").read_bytes())
    late, running = Project(folder), Running(folder / ".spry" / "running.json")
    taken = late.file.server.port
    try:
        assert start_server(late, running)
        assert running.names == ["server"]
        assert late.file.server.port == read(folder / "spry.toml").server.port != taken
        assert httpx.get(f"{late.url}/v1/me", headers=bearer(late)).is_success
        assert httpx.get(f"{project.url}/v1/me", headers=bearer(late)).status_code == 401
    finally:
        running.stop()
    late.file = msgspec.structs.replace(late.file, server=msgspec.structs.replace(late.file.server, port=taken))
    with pytest.raises(ProjectError, match=f"server ended: .*port {taken}.*see .*server.log"):
        start_server(late, running)  # devices may know it
    assert told("status").code == 0


def bearer(project):
    return {"Authorization": f"Bearer {project.admin_token.read_text().strip()}"}


def test_a_broken_project_is_in_nobodys_way_who_names_server_and_token(told, project, tmp_path, monkeypatch):
    (tmp_path / "spry.toml").write_text("[model")
    monkeypatch.chdir(tmp_path)
    assert "cannot be read" in told("job", "list").err
    named = "--server", project.url, "--admin-token", project.admin_token.read_text().strip()
    assert told("job", "list", *named).code == 0

"""Backups of a server that goes on, and what is refused when one is restored."""

import fcntl
import io
import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from edge_client.errors import SpryError
from server.ops.archive import INDEX, unpack
from server.ops.backup import back_up
from server.ops.contents import contents
from server.settings import Settings
from tests.server.conftest import ADMIN
from tests.test_journeys import Fleet, fleet, spry

AVERAGE = {name: {"kind": "fedavg", "learning_rate": 1.0} for name in ("units", "head")}


def silent(_done: int, _total: int) -> None:
    pass


def command(*args: object) -> dict:
    """A command of a user on the server's machine."""
    words = [*fleet.SPRY, *map(str, args), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def adapter(server, folder: Path, *version: str) -> tuple[dict, bytes]:
    """Return what a job has learned: its version and its bits."""
    spry(server, "adapter", "download", "crash", "--out", str(folder), *version)
    return json.loads((folder / "spry.json").read_text()), (folder / "adapter_model.safetensors").read_bytes()


@pytest.fixture
def started(tmp_path, tiny):
    running: list[Fleet] = []

    def start(**settings) -> Fleet:
        running.append(Fleet(tmp_path, tiny, rounds=10_000, keep_updates=False, **settings))
        for number in range(2):
            running[-1].start(number)
        return running[-1]

    yield start
    for one in running:
        one.close()


# --- while rounds go on ---


def test_a_backup_of_a_server_with_a_job_under_way(started, tmp_path):
    one = started(norm_bound=1e6)  # of two devices' noise one in hundreds of rounds goes beyond the default
    before = one.reached(lambda job: job["done"] >= 3)["done"]
    data, restored, archive = tmp_path / "data", tmp_path / "restored", tmp_path / "backup.tar"
    told = command("backup", "--data", data, "--out", archive)
    one.reached(lambda job: job["done"] >= before + 3)  # it did not stop for it
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert not (data / ".backup").exists()
    assert told["database"] == "sqlite"

    assert command("restore", archive, "--data", restored)["files"] == told["files"]
    assert stat.S_IMODE(restored.stat().st_mode) == 0o700
    again = fleet.Server(tmp_path / "again", data_dir=restored, background=False)
    try:
        with again.administrator() as admin:
            job = admin.get("/v1/jobs/crash")
        assert job["id"] == one.job()["id"]
        version, bits = adapter(again, tmp_path / "as-restored")
        assert job["version"] == version["version"] >= before
        assert adapter(one.server, tmp_path / "as-served", "--version", str(version["version"]))[1] == bits
    finally:
        again.stop()

    one.server.kill()  # the machine is lost; another one takes its address
    one.server.settings["data_dir"] = restored
    one.server.start()
    assert one.job()["id"] == job["id"]
    one.reached(lambda found: found["done"] >= job["done"] + 3)
    assert one.job()["refused"] == {}


def test_files_that_the_server_forgets_meanwhile(started, tmp_path):
    """It keeps the weights of one round alone; every backup is whole all the same."""
    one = started(keep=1)
    versions = set()
    for number in range(4):
        one.reached(lambda job, least=number + 2: job["done"] >= least)
        archive, restored = tmp_path / f"{number}.tar", tmp_path / f"restored-{number}"
        back_up(Settings(data_dir=tmp_path / "data"), archive, silent)
        unpack(archive, restored, silent)
        again = Settings(data_dir=restored)
        assert missing(again) == []
        versions.add(newest(again))
    assert len(versions) > 1


def missing(settings: Settings) -> list:
    return look(settings, lambda connection: [
        file for files in contents(connection, settings.data_dir) for file in files
        if not file.is_whole(settings.data_dir)
    ])  # fmt: skip


def newest(settings: Settings) -> int:
    return look(settings, lambda connection: connection.exec_driver_sql("SELECT version FROM jobs").scalar())


def look(settings: Settings, question):
    from server.storage.schema.database import Database

    database = Database(settings.database_url, settings.data_dir)
    with database.read() as connection:
        answer = question(connection)
    database.close()
    return answer


# --- PostgreSQL ---


def test_a_backup_with_postgresql(serving, bundle, postgres, tmp_path):
    import pgserver

    programs = Path(pgserver.__file__).parent / "pginstall" / "bin"
    postgres.psql("CREATE DATABASE backed_up")
    postgres.psql("CREATE DATABASE restored")
    url = postgres.get_uri("backed_up")
    data, restored, archive = tmp_path / "data", tmp_path / "restored", tmp_path / "backup.tar"
    settings = Settings(data_dir=data, database_url=url)
    with serving(data, database_url=url) as server:
        server.create_job(server.upload(bundle), per_round=1, optimizers=AVERAGE)
        server.advance()
        device = server.device()
        task = device.task()
        device.send(task, device.update(task))
        with pytest.raises(SpryError, match=r"cannot be run .*--dump"):
            back_up(settings, archive, silent, dump="no-such-program")
        with pytest.raises(SpryError, match="'false' failed"):
            back_up(settings, archive, silent, dump="false")
        assert not archive.exists()
        back_up(settings, archive, silent, dump=f"{programs / 'pg_dump'} --format=custom")
        server.advance()  # its update is forgotten here, and needed there
        expected = server.call("GET", "/v1/jobs/job/adapter").content
    assert unpack(archive, restored, silent).database == "postgresql"
    again = postgres.get_uri("restored")
    dump = restored / "database.dump"
    subprocess.run([programs / "pg_restore", "--no-owner", f"--dbname={again}", dump], check=True, timeout=300)
    with serving(restored, database_url=again) as server:
        assert server.job()["done"] == 0
        server.advance()
        assert server.job()["done"] == 1
        assert len(server.call("GET", "/v1/jobs/job/adapter").content) == len(expected)


# --- what is refused ---


@pytest.fixture
def data(serving, bundle, tmp_path):
    """A folder with a job, an open round and an update that waits for another."""
    with serving() as server:
        server.create_job(server.upload(bundle), per_round=2, over_selection=1)
        server.advance()
        device = server.device()
        task = device.task()
        device.send(task, device.update(task))
    folder = tmp_path / "data"
    (folder / "admin-token").write_text(ADMIN)
    (folder / "admin-token").chmod(0o600)
    return folder


@pytest.fixture
def archive(data, tmp_path):
    out = tmp_path / "backup.tar"
    back_up(Settings(data_dir=data), out, silent)
    return out


def test_what_a_backup_holds(archive, data, tmp_path):
    seen = []
    index = unpack(archive, tmp_path / "restored", lambda done, total: seen.append((done, total)))
    restored = tmp_path / "restored"
    assert seen[-1] == (index.bytes, index.bytes)
    assert (restored / "admin-token").read_text() == ADMIN
    for name in ("admin-token", "spry.sqlite"):
        assert stat.S_IMODE((restored / name).stat().st_mode) == 0o600
    for kind in ("blobs", "bundles"):
        there = {path.relative_to(data): path.read_bytes() for path in (data / kind).rglob("*") if path.is_file()}
        back = {path.relative_to(restored): path.read_bytes() for path in (restored / kind).rglob("*")
                if path.is_file()}  # fmt: skip
        assert there == back
        assert there


def test_a_round_that_was_being_closed_is_anybodys(data, tmp_path, serving):
    """The process that closes it is alive here; where it is restored, it is not."""
    with serving() as server, server.store.database.write() as connection:
        connection.exec_driver_sql("UPDATE rounds SET state = 'closing', owner = 'other:1:a', lease = 1e12")
    back_up(Settings(data_dir=data), tmp_path / "b.tar", silent)
    unpack(tmp_path / "b.tar", tmp_path / "restored", silent)
    with serving(tmp_path / "restored") as server:
        server.advance()
        assert [found["state"] for found in server.call("GET", "/v1/jobs/job/rounds").json()] == ["open", "done"]
    with serving() as server:
        server.advance()
        assert [found["state"] for found in server.call("GET", "/v1/jobs/job/rounds").json()] == ["closing"]


def refused(archive: Path, target: Path, message: str) -> None:
    before = sorted(target.parent.iterdir())
    with pytest.raises(SpryError, match=message):
        unpack(archive, target, silent)
    assert sorted(target.parent.iterdir()) == before


def test_damaged_archives(archive, tmp_path):
    target, whole = tmp_path / "new", archive.read_bytes()
    with tarfile.open(archive) as tar:  # padding between files may change: nobody reads it
        places = [member.offset_data + member.size // 2 for member in tar if member.size]
    assert len(places) > 5
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1
        archive.write_bytes(changed)
        refused(archive, target, "damaged|cut short|does not list")
    for length in (len(whole) // 2, 600, 0):
        archive.write_bytes(whole[:length])
        refused(archive, target, "damaged|cut short|is no backup")
    refused(tmp_path / "none.tar", target, "cannot be read")
    archive.write_bytes(whole)
    unpack(archive, target, silent)
    refused(archive, target, "holds something already")
    empty = tmp_path / "a volume"
    empty.mkdir()
    unpack(archive, empty, silent)
    assert {path.name for path in empty.iterdir()} == {path.name for path in target.iterdir()}


def rewritten(archive: Path, change) -> None:
    """The same archive with another index or other members."""
    with tarfile.open(archive) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}
    index = json.loads(members[INDEX])
    change(index, members)
    members[INDEX] = json.dumps(index).encode()
    with tarfile.open(archive, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index, members: index.update(format=2), "upgrade spry"),
        (lambda index, members: index.pop("files"), "cannot be read"),
        (lambda index, members: members.update({"more": b"?"}), "does not list"),
        (lambda index, members: members.pop("spry.sqlite"), "spry.sqlite is missing"),
        (
            lambda index, members: (
                index["files"][0].update(path="../outside"),
                members.update({"../outside": members.pop("spry.sqlite")}),
            ),
            "does not lie inside",
        ),
    ],
    ids=["a newer one", "half an index", "a file too many", "a file too few", "a file outside"],
)
def test_archives_that_somebody_made(archive, tmp_path, change, message):
    rewritten(archive, change)
    refused(archive, tmp_path / "new", message)


def test_what_cannot_be_backed_up(data, tmp_path):
    out = tmp_path / "out.tar"

    def wrong(message: str, folder: Path = data, where: Path = out) -> None:
        with pytest.raises(SpryError, match=message):
            back_up(Settings(data_dir=folder), where, silent)
        assert not out.exists()
        assert not (data / ".backup").exists()

    wrong("holds no server's data", tmp_path / "nothing")
    wrong("does not exist; make it", where=tmp_path / "nowhere" / "out.tar")
    (tmp_path / "there.tar").touch()
    wrong("exists; choose another", where=tmp_path / "there.tar")
    with (data / ".backup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wrong("another backup")
    (blob,) = [path for path in (data / "blobs").rglob("*") if path.is_file()]
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    wrong("is not what its hash says")
    blob.unlink()
    wrong("spry doctor --data")


def test_a_disk_without_second_names(data, tmp_path, monkeypatch):
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    back_up(Settings(data_dir=data), tmp_path / "b.tar", silent)
    monkeypatch.undo()
    unpack(tmp_path / "b.tar", tmp_path / "restored", silent)
    assert missing(Settings(data_dir=tmp_path / "restored")) == []


def test_what_a_killed_backup_left_goes_with_the_next(data, tmp_path):
    (data / ".backup" / "blobs").mkdir(parents=True)
    (data / ".backup" / "blobs" / "old").touch()
    back_up(Settings(data_dir=data), tmp_path / "b.tar", silent)
    assert not (data / ".backup").exists()

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from edge_client.errors import StoreError
from edge_client.store.files import safe_name, write
from edge_client.store.job import Checkpoint, KeptWeights, KnownJob
from edge_client.store.jobs import DeviceStore, default_home
from edge_client.wire.protocol import Enrolled, Report, Sum
from edge_client.wire.tensors import decode_update

SERVER = "https://spry.example.org:8443/fleet/"
WEIGHTS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([np.pi])}


@pytest.fixture
def told() -> list:
    return []


@pytest.fixture
def store(tmp_path, told) -> DeviceStore:
    return DeviceStore(tmp_path, SERVER, tell=told.append)


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_where_everything_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SPRY_HOME", str(tmp_path / "elsewhere"))
    assert default_home() == tmp_path / "elsewhere"
    monkeypatch.delenv("SPRY_HOME")
    assert default_home().parts[-3:] == (".local", "share", "spry")
    folders = {DeviceStore(tmp_path, url).folder for url in (SERVER, SERVER.upper(), "https://spry.example.org:8443")}
    assert len(folders) == 2
    assert all(folder.parent == tmp_path for folder in folders)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", ".hidden", "a/b", "ä", "x" * 300, "a\0b"])
def test_names_of_the_server_stay_in_their_folder(tmp_path, name):
    folder = DeviceStore(tmp_path, SERVER).job(name).folder
    assert folder.parent == DeviceStore(tmp_path, SERVER).folder / "jobs"
    assert safe_name(name) != safe_name(name + "x")
    folder.mkdir(parents=True)


def test_the_identity_is_for_its_owner_alone(store):
    assert store.identity() is None
    store.save_identity(Enrolled("device", "secret"))
    assert store.identity() == Enrolled("device", "secret")
    assert stat.S_IMODE((store.folder / "identity.json").stat().st_mode) == 0o600


def test_the_only_server(tmp_path, store):
    with pytest.raises(StoreError, match="no server; take part"):
        DeviceStore.only(tmp_path)
    store.save_identity(Enrolled("device", "secret"))
    assert DeviceStore.only(tmp_path).folder == store.folder
    DeviceStore(tmp_path, "http://other").save_identity(Enrolled("device", "secret"))
    with pytest.raises(StoreError, match="name one with --server"):
        DeviceStore.only(tmp_path)


def test_a_second_client_is_kept_out(store, tmp_path):
    with store.locked(), pytest.raises(StoreError, match="another client uses"), store.locked():
        pass
    with store.locked():
        code = (
            "from pathlib import Path; from edge_client.store.jobs import DeviceStore\n"
            f"with DeviceStore(Path({str(tmp_path)!r}), {SERVER!r}).locked(): pass"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another client uses" in done.stderr
    with store.locked():
        pass


def test_weights_come_back_bit_for_bit(store):
    job = store.job("job-1")
    assert job.weights("bundle") is None
    job.save_weights("bundle", KeptWeights(7, WEIGHTS, {"m:a": WEIGHTS["a"] * 2}))
    found = job.weights("bundle")
    assert found.version == 7
    assert same(found.weights, WEIGHTS)
    assert same(found.optimizer, {"m:a": WEIGHTS["a"] * 2})
    assert job.weights("another bundle") is None
    job.save_personal("bundle", 3, WEIGHTS)
    assert job.personal("bundle").version == 3
    assert job.personal("another bundle") is None


def test_progress_is_of_one_task_on_the_same_data(store, task, changed):
    job = store.job("job-1")
    progress = Checkpoint(3, 1 / 3, 12, 4.5, WEIGHTS, {"t:a": np.float32([3])})
    job.begin(task)
    job.save_progress(task, "data", progress)
    found = job.progress(task, "data")
    assert (found.step, found.loss, found.examples, found.seconds) == (3, 1 / 3, 12, 4.5)
    assert same(found.weights, WEIGHTS)
    assert job.progress(task, "other data") is None
    assert job.progress(changed(id="task-2"), "data") is None
    assert job.progress(changed(version=1), "data") is None
    job.begin(task)
    assert job.progress(task, "data") is not None
    job.begin(changed(id="task-2"))
    assert job.progress(task, "data") is None


def test_a_seed_of_a_sum_is_the_devices_own(store, task, changed):
    """A server that gives a version and a seed twice gets another update for it; a crash gets the same."""
    summed = Sum(place=0, units=[6, 7], least=3)
    job, told = store.job("job-1"), changed(id="summed", sum=summed)
    first = job.begin(told)
    assert first.seed != told.seed
    job.save_update(WEIGHTS, Report(examples=12, steps=3, loss=0.5))
    again = DeviceStore(store.folder.parent, SERVER).job("job-1")
    assert again.begin(told) == first == again.task()
    assert again.update() is not None
    assert again.begin(changed(id="summed")).seed == told.seed  # nor is what was made for a sum sent without one
    assert again.update() is None
    assert len({job.begin(changed(id=f"summed-{number}", sum=summed)).seed for number in range(4)}) == 4
    job.finish()
    assert job.begin(told).seed != first.seed


def test_a_result_is_kept_until_its_task_is_finished(store, task, changed):
    job = store.job("job-1")
    job.begin(task)
    assert job.task() == task
    job.save_progress(task, "data", Checkpoint(3, 1.0, 12, 4.5, WEIGHTS, {}))
    job.save_update(WEIGHTS, Report(examples=12, steps=3, loss=0.5))
    assert job.progress(task, "data") is None
    tensors, report = decode_update(job.update())
    assert same(tensors, WEIGHTS)
    assert (report.examples, report.steps, report.loss) == (12, 3, 0.5)
    (job.folder / "task.json").unlink()  # killed in the middle of `finish`
    assert job.update() is None
    job.begin(changed(id="task-2"))
    assert job.update() is None
    job.finish()
    assert job.task() is None


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 32, b"x" * 200])
def test_a_damaged_file_is_set_aside(store, told, damage):
    job = store.job("job-1")
    job.save_weights("bundle", KeptWeights(7, WEIGHTS))
    path = job.folder / "weights.safetensors"
    path.write_bytes(damage)
    assert job.weights("bundle") is None
    assert not path.exists()
    assert path.with_name("weights.safetensors.damaged").read_bytes() == damage
    assert "could not be read" in told[0].message
    assert job.weights("bundle") is None
    assert len(told) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"device": 1}', b"\xff"])
def test_a_damaged_identity_is_set_aside(store, told, damage):
    store.save_identity(Enrolled("device", "secret"))
    (store.folder / "identity.json").write_bytes(damage)
    assert store.identity() is None
    assert "identity.json could not be read" in told[0].message


def test_one_flipped_bit_is_noticed(store):
    job = store.job("job-1")
    job.save_weights("bundle", KeptWeights(7, WEIGHTS))
    path = job.folder / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    assert job.weights("bundle") is None


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_killed_while_writing_a_reader_sees_the_old_or_the_new(tmp_path):
    """A writer that is killed at random moments; every reader in between gets a whole file."""
    code = f"""
from pathlib import Path
import numpy as np
from edge_client.store.job import KeptWeights
from edge_client.store.jobs import DeviceStore
job = DeviceStore(Path({str(tmp_path)!r}), {SERVER!r}).job("job")
version = 0
print("ready", flush=True)
while True:
    version += 1
    job.save_weights("bundle", KeptWeights(version, {{"a": np.full(50_000, version, np.float32)}}))
"""
    random = np.random.default_rng(0)
    store, told = DeviceStore(tmp_path, SERVER), []
    store.tell = told.append
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            try:
                writer.wait(random.uniform(0.02, 0.2))
            except subprocess.TimeoutExpired:
                writer.kill()
        found = store.job("job").weights("bundle")
        if found is not None:
            assert (found.weights["a"] == found.version).all()
    assert not told
    with store.locked():
        assert not list(tmp_path.rglob(".writing-*"))


def test_bundles_that_no_job_uses_are_removed(store, task, changed):
    for name in ("used", "wanted", "old"):
        store.bundle(name).mkdir(parents=True)
    store.job("a").save_about(KnownJob("a", "a", "used", "onnx"))
    store.job("b").begin(changed(bundle="wanted"))
    with store.locked():
        pass
    assert store.bundle("used").is_dir()
    assert store.bundle("wanted").is_dir()
    assert not store.bundle("old").exists()


def test_jobs_come_newest_first(store):
    for number, name in enumerate(("a", "b", "c")):
        store.job(name).save_about(KnownJob(name, name, "bundle", "onnx"))
        os.utime(store.job(name).folder, (number, number))
    assert [job.about.id for job in store.jobs()] == ["c", "b", "a"]

"""The Android library's client in rounds of the real server, beside Python's; its programs run in a worker process."""

import hashlib
import io
import json
import random
import shutil
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from edge_client import keys
from edge_client.bundle import signature
from edge_client.bundle.folder import Bundle
from edge_client.client.predictions import predict
from edge_client.client.secure_sum import Adding
from edge_client.secagg.adding import changes
from edge_client.store.job import JobStore
from edge_client.store.jobs import DeviceStore
from edge_client.wire.proofs import Signing, enrolment
from edge_client.wire.protocol import CheckIn, Report
from edge_client.wire.server import Server as Wire
from tests import android
from tests.benchmarks import script

WORDS = ["the ice", "the lake", "it", "a train", "on the lake", "a b c", "the ice is on the lake"]
TEXTS = ["the ice is on the lake", "a train!", "it"]
MODES = {
    # A tiny model's features hardly vary, so that a step by them makes much of how each side rounds.
    "epoch": {
        "training": {"batch": 2, "length": 8, "epochs": 2, "learning_rate": 0.01},
        "measure_features": False,
    },
    "iteration": {"training": {"batch": 2, "length": 8, "mode": "iteration", "iterations": 3, "learning_rate": 0.01}},
}
MIXED = {
    "assignment": "all",
    "measure_features": False,
    "training": {"batch": 2, "length": 8, "epochs": 2, "learning_rate": 0.01, "estimator": "mixed"},
}
SLOW = {"training": {"batch": 2, "length": 8, "epochs": 80, "learning_rate": 5e-4, "optimizer": "adamw"}}


fleet = script("fleet")


class Desk:
    """A server, and clients of both kinds that take part in its jobs."""

    def __init__(self, folder: Path, bundle: Path, classes: str) -> None:
        self.folder = folder
        self.classes = classes
        self.server = fleet.Server(folder, retry_seconds=0.2, tick_seconds=0.05)
        self.data = fleet.write_rows(folder / "rows.jsonl", rows(21))
        self.processes: list[fleet.Process] = []
        with self.server.administrator() as admin:
            self.bundle = admin.upload_bundle(bundle)
            self.token = admin.post("/v1/tokens", {"uses": 100})["token"]

    def job(self, name: str, bundle: Path | None = None, **settings) -> str:
        values = {"per_round": 1, "minimum": 1, "over_selection": 1, "rounds": 2, "seed": 1} | settings
        with self.server.administrator() as admin:
            used = self.bundle if bundle is None else admin.upload_bundle(bundle)
            admin.post("/v1/jobs", {"name": name, "bundle": used, "settings": values})
        return name

    def shown(self, name: str) -> dict:
        with self.server.administrator() as admin:
            return admin.get(f"/v1/jobs/{name}")

    def advice(self, name: str) -> list[str]:
        with self.server.administrator() as admin:
            return admin.get(f"/v1/jobs/{name}/advice")

    def adapter(self, name: str) -> dict[str, np.ndarray]:
        with self.server.administrator() as admin:
            archive = zipfile.ZipFile(io.BytesIO(admin.bytes(f"/v1/jobs/{name}/adapter")))
        return load(archive.read(next(n for n in archive.namelist() if n.endswith("adapter_model.safetensors"))))

    def python(self, name: str, *options: str) -> fleet.Process:
        given = "--job", name, "--name", "python", "--holdout", "0", *options
        return self.kept(fleet.Client(self.server, self.home("python", name), self.data, self.token, *given))

    def jvm(self, name: str, *options: str, token: str = "", kind: str = "jvm") -> fleet.Process:
        folder = self.home(kind, name)
        command = [*self.java(folder), "--data", str(self.data), "--token", token or self.token, "--job", name,
                   "--holdout", "0", *options]  # fmt: skip
        process = fleet.Process(command, folder / "client.log", **android.environment())
        process.folder = folder
        return self.kept(process)

    def java(self, folder: Path) -> list[str]:
        where = ["--server", self.server.url, "--home", str(folder / "home")]
        return android.java(self.classes, "dev.spry.core.JoinMain", *where)

    def predicted(self, home: str, name: str, *options: str) -> list[dict]:
        """By the JVM, whoever trained."""
        command = [*self.java(self.home(home, name)), "--job", name, "--predict", "|".join(TEXTS), *options]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=android.environment(), check=False
        )
        assert done.returncode == 0, done.stderr
        return android.said(done.stdout)

    def home(self, kind: str, name: str) -> Path:
        return self.folder / f"{kind}-{name}"

    def store(self, kind: str, name: str) -> DeviceStore:
        return DeviceStore(self.home(kind, name) / "home", self.server.url)

    def job_store(self, kind: str, name: str) -> JobStore:
        return self.store(kind, name).job(self.shown(name)["id"])

    def kept(self, process: fleet.Process) -> fleet.Process:
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.server.stop()


def rows(count: int) -> list[dict]:
    rng = random.Random(7)
    return [{"text": " ".join(rng.choices(WORDS, k=2)), "label": rng.choice(["no", "maybe", "yes"])}
            for _ in range(count)]  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory, classes, bundle):
    desk = Desk(tmp_path_factory.mktemp("desk"), bundle, classes)
    yield desk
    desk.close()


def events(process) -> list[dict]:
    lines = (process.folder / "client.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def ended(process, code: int = 0) -> None:
    process.process.wait(300)
    assert process.process.returncode == code, (process.folder / "client.log").read_text()


def told(process, condition, seconds: float = 40) -> dict:
    """The first event of a kind, once it is there."""
    until = time.monotonic() + seconds
    while True:
        found = next(filter(condition, events(process)), None)
        if found is not None:
            return found
        assert process.running, (process.folder / "client.log").read_text()
        assert time.monotonic() < until, events(process)[-1:]
        time.sleep(0.02)


def until(holds, seconds: float = 40) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


def assert_same(found: dict, expected: dict, apart: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=apart, err_msg=name)


def moved(found: dict, start: dict) -> float:
    return max(float(np.abs(found[name] - value).max()) for name, value in start.items())


# --- rounds ---


@pytest.mark.parametrize(("mode", "settings"), [*MODES.items(), ("mixed", MIXED)])
def test_alone_it_sends_what_a_python_client_sends(desk, mode, settings):
    """Two jobs that differ in nothing but who trains: the tasks have the same seeds, and the server moves its weights
    by what it is sent."""
    plain = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    twins = [desk.job(f"{mode}-{kind}", optimizers=plain, **settings) for kind in ("jvm", "python")]
    start = desk.adapter(twins[0])
    running = [desk.jvm(twins[0], "--rounds", "2"), desk.python(twins[1], "--rounds", "2")]
    for process in running:
        ended(process)
    ours, theirs = (desk.adapter(name) for name in twins)
    assert moved(theirs, start) > 1e-3
    assert_same(ours, theirs)
    losses = [[event["loss"] for event in events(process) if event["event"] == "progress"] for process in running]
    np.testing.assert_allclose(*losses, atol=1e-4)
    (device,) = (event["device"] for event in events(running[0]) if event["event"] == "enrolled")
    with desk.server.administrator() as admin:
        assert admin.get(f"/v1/devices/{device}")["signs"] is True
    identity = json.loads((desk.store("jvm", twins[0]).folder / "identity.json").read_text())
    assert identity == {"device": device, "secret": ""}


@pytest.mark.parametrize("mode", MODES)
def test_it_takes_part_beside_python_clients(desk, mode):
    """The server's own optimizer is adaptive; in mode iteration both devices repeat its steps."""
    name = desk.job(
        f"{mode}-beside", per_round=2, minimum=2, device_evaluation=1, **MODES[mode] | {"measure_features": True}
    )
    start = desk.adapter(name)
    running = desk.jvm(name, "--rounds", "2", "--holdout", "0.3"), desk.python(name, "--rounds", "2")
    for process in running:
        ended(process)
    job = desk.shown(name)
    assert (job["state"], job["done"], job["refused"]) == ("ended", 2, {})
    assert moved(desk.adapter(name), start) > 1e-3
    if mode == "epoch":
        evaluated = [event for event in events(running[0]) if event["event"] == "evaluated"]
        assert len(evaluated) == 2
        assert all(1 <= event["held_back"] <= 20 for event in evaluated)
    else:
        ours, theirs = (desk.job_store(kind, name).weights(desk.bundle) for kind in ("jvm", "python"))
        assert (ours.version, theirs.version) == (6, 6)
        assert_same(ours.weights, theirs.weights)
        assert_same(ours.optimizer, theirs.optimizer)
        assert_same({n: ours.weights[n] for n in start}, desk.adapter(name))


# --- sums ---


class Vanishing:
    """A device that adds a change to a sum, and is not there any more when it was sent."""

    def __init__(self, desk: Desk, name: str, bundle: Path, change: float) -> None:
        key = keys.make()
        wire = self.wire = Wire(desk.server.url)
        identity = wire.identity = wire.enrol(enrolment(desk.token, "vanishing", "", key))
        wire.signing = Signing(identity.device, key, desk.server.url)
        task = wire.check_in(CheckIn(["onnx"], examples=21, job=name, sums=True, adds_noise=True)).task
        manifest = Bundle.open(bundle).manifest
        still = {one.name: np.zeros(one.shape, np.float32) for one in manifest.trained}
        moved = {one: value + np.float32(change) for one, value in still.items()}
        job = JobStore(desk.home("vanishing", name))
        job.folder.mkdir()
        job.begin(task)
        job.save_update(changes(manifest, task.sum.units, moved, still), Report(21, 22, 1.0))
        self.adding = Adding(task, wire, job, key, time.sleep, lambda _: None)

    def run(self) -> None:
        self.adding.begin()
        while self.adding._said != "update":
            assert self.adding.step() is None
        self.wire.close()


@pytest.mark.parametrize("private", [{}, {"privacy_noise": 1e-5, "privacy_clip": 20.0}], ids=["sums", "shares"])
def test_it_adds_to_a_sum_beside_python_clients(desk, bundle, private):
    """Two of it, one of Python's, and one that vanishes behind its update: the sum is the mean of what each has.

    Where each adds its share of a noise that hides nothing, too.
    """
    plain = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    settings = {"per_round": 4, "minimum": 4, "rounds": 1, "assignment": "all", "device_evaluation": 0}
    name = "shares" if private else "sums"
    desk.job(name, secure_aggregation=True, optimizers=plain, **MODES["epoch"] | settings | private)
    start = desk.adapter(name)
    kinds = ("jvm", "other-jvm", "python")
    running = [desk.jvm(name, "--rounds", "1", "--only-sums", "yes", kind=kind) for kind in kinds[:2]]
    running.append(desk.python(name, "--rounds", "1", "--only-sums"))
    Vanishing(desk, name, bundle, 0.25).run()
    for process in running:
        ended(process)
    job = desk.shown(name)
    assert (job["state"], job["done"], job["refused"], job["metrics"]["reports"]) == ("ended", 1, {}, 4)
    assert job["sees"].startswith("sums of at least 3 devices")
    own = [desk.job_store(kind, name).personal(desk.bundle).weights for kind in kinds]
    mean = {one: value + (sum(weights[one] - value for weights in own) + 0.25) / 4 for one, value in start.items()}
    assert all(moved(weights, start) > 1e-3 for weights in own)
    assert_same(desk.adapter(name), mean, 5e-4 if private else 1e-5)


def test_it_is_offered_nothing_but_sums_where_it_wants_no_more(desk):
    name = desk.job("seen", **MODES["epoch"])
    jvm = desk.jvm(name, "--once", "yes", "--only-sums", "yes")
    ended(jvm)
    (why,) = [event["message"] for event in events(jvm) if event["event"] == "waiting"]
    assert "seen shows updates to its server, and this device takes part only in sums" in why
    assert desk.shown(name)["done"] == 0


# --- what ends it ---


def test_a_round_survives_a_stop_and_a_kill(desk):
    names = [desk.job(f"slow-{kind}", rounds=1, **SLOW) for kind in ("jvm", "python")]
    twin = desk.python(names[1], "--rounds", "1")

    jvm = desk.jvm(names[0], "--rounds", "1")
    told(jvm, lambda event: event["event"] == "progress" and event["step"] >= 20)
    jvm.process.send_signal(signal.SIGTERM)  # as the system ends a worker: there is time to save
    jvm.process.wait(300)
    assert events(jvm)[-1]["event"] == "stopped"

    jvm = desk.jvm(names[0], "--rounds", "1")
    resumed = told(jvm, lambda event: event["event"] == "resumed")
    assert resumed["step"] >= 20
    told(jvm, lambda event: event["event"] == "progress" and event["step"] >= resumed["step"] + 20)
    jvm.kill()  # as it kills one: there is none

    jvm = desk.jvm(names[0], "--rounds", "1")
    ended(jvm)
    steps = [event["step"] for event in events(jvm) if event["event"] == "progress"]
    assert steps.count(resumed["step"] + 10) == 2
    assert steps.count(resumed["step"] - 10) == 1
    ended(twin)
    assert desk.shown(names[0])["refused"] == {}
    assert_same(desk.adapter(names[0]), desk.adapter(names[1]))


def test_rows_that_fit_no_job_take_no_place(desk):
    """Before a bundle is fetched, and the operator hears why."""
    name = desk.job("unfit", **MODES["epoch"])
    folder = desk.home("jvm", name)
    folder.mkdir()
    given = fleet.write_rows(folder / "given.jsonl", [*rows(4), {"text": "the ice", "label": "perhaps"}])
    jvm = desk.jvm(name, "--data", str(given), "--once", "yes")
    ended(jvm)
    assert not [event for event in events(jvm) if event["event"] == "task"]
    assert not list(folder.rglob("manifest.json"))
    why = "1 of 5 rows have a label that it does not know: 'perhaps' (1)"
    (told,) = [event["message"] for event in events(jvm) if event["event"] == "warning" and "fit" in event["message"]]
    assert told == f"these rows do not fit unfit: {why}; its labels are no, maybe, yes"
    until(lambda: any(why in line for line in desk.advice(name)))
    fleet.write_rows(given, rows(4))
    ended(desk.jvm(name, "--data", str(given), "--rounds", "1", "--low-memory", "yes"))


def test_a_wrong_token_is_told_in_a_line(desk):
    name = desk.job("closed", **MODES["epoch"])
    jvm = desk.jvm(name, "--once", "yes", token="no-such-token")
    ended(jvm, code=2)
    last = (jvm.folder / "client.log").read_text().splitlines()[-1]
    assert last.startswith("error: ")
    assert "token" in last
    assert not list(jvm.folder.glob("home/*/identity.json"))


# --- whose bundles it takes ---


def test_it_takes_bundles_of_the_pinned_publisher_alone(desk, bundle, tmp_path):
    owner, stranger = keys.make(), keys.make()
    key = keys.public_of(owner)
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest))  # other bytes: no other test may have it signed

    def uploaded() -> str:
        with desk.server.administrator() as admin:
            return admin.upload_bundle(folder)

    def joins(name: str, token: str) -> fleet.Process:
        process = desk.jvm(name, "--once", "yes", token=token)
        ended(process)
        return process

    desk_bundle, desk.bundle = desk.bundle, uploaded()
    name = desk.job("pinned", **MODES["epoch"], rounds=1)
    desk.bundle = desk_bundle
    for signer, why in ((None, "the bundle is not signed, and"), (stranger, "is not signed by the publisher " + key)):
        if signer:
            signature.sign(folder, signer)
            uploaded()
        refused = joins(name, f"{desk.token}.{key}")
        failed = [event["message"] for event in events(refused) if event["event"] == "failed"]
        assert why in failed[-1]
        kept = desk.store("jvm", name).bundle(hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest())
        assert {path.name for path in kept.rglob("*")} <= {"manifest.json", "manifest.sig"}
    assert desk.store("jvm", name).publisher() == key
    signature.sign(folder, owner)
    uploaded()
    until = time.monotonic() + 300
    while desk.shown(name)["done"] == 0:  # it sits out a while, having given tasks back
        assert time.monotonic() < until
        joins(name, desk.token)
    assert desk.shown(name)["state"] == "ended"
    assert len(desk.predicted("jvm", name)) == len(TEXTS)
    (kept / "manifest.sig").unlink()
    command = [*desk.java(desk.home("jvm", name)), "--job", name, "--predict", "it"]
    found = subprocess.run(command, capture_output=True, text=True, env=android.environment(), check=False)
    assert "the bundle is not signed" in found.stderr


# --- what it keeps ---


@pytest.mark.parametrize("who", ["jvm", "python"])
def test_both_predict_from_what_either_keeps(desk, who):
    """Files on the device are the same: either client reads what the other has written."""
    name = f"epoch-{who}"
    if not desk.home(who, name).exists():
        desk.job(name, **MODES["epoch"])
        ended(desk.jvm(name, "--rounds", "2") if who == "jvm" else desk.python(name, "--rounds", "2"))
    personal = predict(desk.store(who, name), TEXTS, job=name, personal=True, threads=1)
    for_all = predict(desk.store(who, name), TEXTS, job=name, threads=1)
    assert personal != for_all
    for options, expected in ((("--personal", "yes"), personal), ((), for_all)):
        found = desk.predicted(who, name, *options)
        assert [one["label"] for one in found] == [one.label for one in expected]
        for one, other in zip(found, expected, strict=True):
            assert one["scores"] == pytest.approx(other.scores, abs=1e-5)

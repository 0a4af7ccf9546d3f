"""Devices whose runtime computes something else than the exporter's did."""

import shutil

import msgspec
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from edge_client.errors import WrongResults


@pytest.fixture
def expecting_else(tmp_path):
    """A bundle that expects of ONNX Runtime what that does not give: as if it computed wrongly here."""

    def make(folder):
        copy = shutil.copytree(folder, tmp_path / "bundle")
        expect_else(copy)
        return copy

    return make


def expect_else(folder):
    manifest = manifests.read(folder / FILE_NAME)
    spec = manifest.runtimes["onnx"]
    trials = [
        msgspec.structs.replace(
            trial, outcomes=tuple(msgspec.structs.replace(one, size=one.size + 1) for one in trial.outcomes)
        )
        for trial in spec.trials
    ]
    wrong = manifest.runtimes | {"onnx": msgspec.structs.replace(spec, trials=tuple(trials))}
    (folder / FILE_NAME).write_bytes(manifests.write(msgspec.structs.replace(manifest, runtimes=wrong)))


def test_the_next_runtime_is_taken(fleet, expecting_else, exported_once):
    folder = exported_once("for-two-runtimes", runtimes=("onnx", "executorch"), batches=(4,))
    fleet.job(fleet.upload(expecting_else(folder)), rounds=1)
    client = fleet.client()
    assert client.runtimes[:2] == ["onnx", "executorch"]
    done = client.run(rounds=1)
    assert (done.rounds, done.failures) == (1, 1)
    assert client.runtimes == ["executorch"]
    (failed,) = fleet.told("failed")
    assert "the runtime onnx gives wrong results here: " in failed.message


def test_a_device_without_another_one_ends(fleet, expecting_else, trainable):
    fleet.job(fleet.upload(expecting_else(trainable)), rounds=1)
    client = fleet.client(runtime="onnx")
    with pytest.raises(WrongResults, match="wrong results here"):
        client.run(rounds=1)
    assert len(fleet.told("failed")) == 1
    fetched = len(fleet.told("download"))
    assert fetched
    with pytest.raises(WrongResults, match="wrong results here"):  # a service starts it again
        fleet.client(runtime="onnx").run(rounds=1)
    assert len(fleet.told("download")) == fetched
    (kept,) = (fleet.folder / "home").glob("*/refused.json")
    kept.write_text(kept.read_text().replace("onnxruntime of ", "onnxruntime of another day "))
    with pytest.raises(WrongResults, match="wrong results here"):
        fleet.client(runtime="onnx").run(rounds=1)
    assert len(fleet.told("download")) > fetched


def test_a_right_one_is_tried_once_and_another_version_before_it_predicts(fleet, trainable):
    fleet.job(fleet.upload(trainable), rounds=1)
    client = fleet.client(runtime="onnx")
    assert client.run(rounds=1).rounds == 1
    (kept,) = (fleet.folder / "home").glob("*/bundles/*/tried.json")
    assert "onnxruntime" in kept.read_text()
    expect_else(kept.parent)
    assert len(client.predict(["the ice"])) == 1
    kept.write_text(kept.read_text().replace("onnxruntime of ", "onnxruntime of another day "))
    with pytest.raises(WrongResults, match="wrong results here"):
        client.predict(["the ice"])

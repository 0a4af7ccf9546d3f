"""Predictions of a device that took part in a job, with all programs loaded and with one at a time."""

import hashlib
import json

import numpy as np
import pytest

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME
from edge_client.client.client import Client
from edge_client.client.conditions import Conditions
from edge_client.commands import cli
from edge_client.runtimes.onnx import OnnxRuntime
from edge_client.store.job import KeptWeights, KnownJob
from edge_client.store.jobs import DeviceStore

SERVER = "http://127.0.0.1:9"
TEXTS = ["the ice is on the lake", "a train!", "it", "on the lake", "a b c", "the ice"]
"""More than a batch."""


@pytest.fixture
def home(trainable, tmp_path):
    """Return the home of a device that has other weights than the job began with."""
    rng, store = np.random.default_rng(), DeviceStore(tmp_path / "home", SERVER)
    name = hashlib.sha256((trainable / FILE_NAME).read_bytes()).hexdigest()
    store.bundle(name).parent.mkdir(parents=True)
    store.bundle(name).symlink_to(trainable)
    initial = Bundle.open(trainable).initial_adapter()
    moved = {key: value + 0.1 * rng.standard_normal(value.shape, np.float32) for key, value in initial.items()}
    store.job("j").save_about(KnownJob("j", "talk", name, "onnx"))
    store.job("j").save_weights(name, KeptWeights(1, moved))
    return tmp_path / "home"


@pytest.fixture
def loaded(monkeypatch):
    """Return how many programs were loaded behind each one's run."""
    counts, run = [], OnnxRuntime.run

    def watched(runtime, program, inputs):
        outputs = run(runtime, program, inputs)
        counts.append(len(runtime._loaded))
        return outputs

    monkeypatch.setattr(OnnxRuntime, "run", watched)
    return counts


def test_one_program_at_a_time_predicts_the_same(home, trainable, loaded, capsys):
    def predicted(*options: str) -> tuple[list, list[int]]:
        loaded.clear()
        asked = "predict", *TEXTS, "--home", str(home), "--server", SERVER, "--threads", "1", "--json", *options
        assert cli.run([*asked]) == 0
        return json.loads(capsys.readouterr().out), [*loaded]

    together, all_of_them = predicted()
    alone, one = predicted("--low-memory")
    assert alone == together  # bit for bit
    segments = len(Bundle.open(trainable).manifest.segments)
    assert max(all_of_them) == segments > 1
    assert one == [1] * 2 * segments, "two batches, each program loaded for each"


def test_a_client_with_little_memory_predicts_so_too(home, loaded):
    client = Client(SERVER, home=home, conditions=Conditions(low_memory=True), threads=1)
    assert len(client.predict(TEXTS)) == len(TEXTS)
    assert set(loaded) == {1}

"""Training that holds one program at a time: the same numbers, with less in memory."""

import numpy as np
import pytest

from edge_client.bundle.chain import bytes_of
from edge_client.bundle.folder import Bundle
from edge_client.errors import TrainingError
from edge_client.runtimes.onnx import OnnxRuntime
from edge_client.training.session import plan_for, programs_of
from tests.edge_client.bench import Bench


class Watched(OnnxRuntime):
    """Notes what it loads, and how much it holds then."""

    def __init__(self, folder):
        super().__init__(folder, threads=1)
        self.loads: list[str] = []
        self.most = 0

    def _load(self, program):
        self.loads.append(f"{program.segment}.{program.kind}")
        self.most = max(self.most, len(self._loaded) + 1)
        return super()._load(program)


@pytest.fixture
def watched(trainable):
    with Watched(trainable) as runtime:
        yield Bench(Bundle.open(trainable), runtime)


def trained(bench, task, **options):
    """The weights after two epochs, and the losses on the way."""
    states = bench.round(task, **options)
    return states[-1].weights, [state.loss for state in states]


@pytest.mark.parametrize(
    "training",
    [
        {"estimator": "forward", "directions": 2},
        {"estimator": "forward", "directions": 4},
        {"estimator": "exact"},
        {"estimator": "mixed", "exact_blocks": 1, "units": [0, 1], "cut": 1},
        {"estimator": "central", "head": "joint"},
    ],
    ids=lambda training: "-".join(str(value) for value in training.values()),
)
def test_one_program_at_a_time_trains_to_the_same_weights(bench, watched, changed, training):
    task = changed(**training)
    expected, losses = trained(bench, task, cache_bytes=1 << 20)
    found, told = trained(watched, task, cache_bytes=1 << 20, low_memory=True)
    assert told == losses
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    assert watched.runtime.most == 1
    assert not watched.runtime._loaded


def test_a_kept_prefix_is_not_loaded_again(watched, changed):
    task = changed(estimator="forward")
    batches = len(watched.batches(task))
    trained(watched, task, cache_bytes=1 << 20, low_memory=True)
    loads = watched.runtime.loads
    assert loads.count("embed.plain") == batches, "in the first of the two epochs alone"
    assert loads.count("head.dual") == 2 * batches
    watched.runtime.loads.clear()
    trained(watched, task, cache_bytes=0, low_memory=True)
    assert watched.runtime.loads.count("embed.plain") == 2 * batches


def test_a_device_may_ask_for_it_whatever_memory_it_has(bundle, changed):
    manifest = Bundle.open(bundle).manifest
    task = changed(batch=2, estimator="exact")
    programs = programs_of(manifest, task)
    together, alone = bytes_of(programs), bytes_of(programs, low_memory=True)
    assert alone < together
    assert not plan_for(manifest, task, None).low_memory
    assert plan_for(manifest, task, None, low_memory=True).low_memory
    assert not plan_for(manifest, task, together).low_memory
    assert plan_for(manifest, task, together - 1).low_memory
    asked = plan_for(manifest, task, together, low_memory=True)
    assert asked.low_memory
    assert asked.cache_bytes == together - alone, "what it saves may keep prefixes"
    with pytest.raises(TrainingError, match="for its largest program, training may take"):
        plan_for(manifest, task, alone - 1, low_memory=True)

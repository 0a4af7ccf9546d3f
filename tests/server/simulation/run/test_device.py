"""Test what simulated steps ask of a device, by a bundle's measured programs."""

import json

import pytest

from edge_client.bundle.chain import Chain, cost
from edge_client.bundle.folder import Bundle
from edge_client.estimators.registry import ESTIMATORS
from edge_client.wire.protocol import ServerOptimizers, Task, Training
from server.errors import SimulationError
from server.simulation.plan import plan_for
from server.simulation.run.device import DeviceMemory
from server.simulation.run.run import simulate
from tests.server.simulation.runs import SMALL_LORA


def task_of(units, training):
    return Task(
        id="task", job="job", job_name="job", round=1, seed=1, units=units, cut=0, bundle="", runtime="", version=0,
        iteration=0, seconds=0.0, training=training, optimizers=ServerOptimizers(), batch=training.batch,
    )  # fmt: skip


@pytest.mark.parametrize("estimator", ["forward", "exact", "central"])
def test_the_largest_steps_memory(bundle, estimator):
    manifest = Bundle.open(bundle).manifest
    training = Training(batch=2, length=8, directions=2, estimator=estimator)
    memory = DeviceMemory(bundle, manifest, training)
    chain = Chain(manifest, next(iter(manifest.runtimes)), 2, 8, 2 if estimator == "forward" else 1)

    def measured(cut):
        programs = ESTIMATORS[estimator].programs(chain, training, cut)
        return cost(programs).load_bytes + cost(programs).peak_bytes

    first, last = task_of([0, 1], training), task_of([2, 3], training)
    assert memory.peak([last]) == measured(2) > 0
    assert memory.peak([last, first]) == max(measured(1), measured(2))


def test_more_directions_than_there_are_programs_for_are_taken_in_turns(bundle):
    manifest = Bundle.open(bundle).manifest
    most = max(manifest.directions)
    at_once, in_turns = (Training(batch=2, length=8, directions=count) for count in (most, 4 * most))
    assert DeviceMemory(bundle, manifest, in_turns).peak([task_of([0], in_turns)]) == (
        DeviceMemory(bundle, manifest, at_once).peak([task_of([0], at_once)])
    )


def test_a_run_tells_its_clients_memory(bundle, model_folder, writing, tmp_path):
    plan = plan_for(
        method="spry", preset="default", model=str(model_folder), data=str(writing(rows=24, test=3)), seed=1, clients=4,
        alpha=1.0, adapter=SMALL_LORA, personal=False, settings={
            "per_round": 4, "rounds": 2, "evaluate_every": 2, "training": {"batch": 2, "length": 8, "iterations": 1},
        },
    )  # fmt: skip
    summary = simulate(plan, tmp_path / "run", lambda line: None, costs=bundle)
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    expected = DeviceMemory(bundle, Bundle.open(bundle).manifest, plan.settings.training)
    tasks = [task_of([unit], plan.settings.training) for unit in range(4)]
    assert [line["peak_bytes"] for line in lines] == [expected.peak(tasks)] * 2
    assert summary["peak_bytes"] == expected.peak(tasks)
    assert summary["numbers_down_own"] == 2 * 4 * 64


def test_a_bundle_that_does_not_fit_is_refused(bundle, exported_once):
    manifest = Bundle.open(bundle).manifest
    with pytest.raises(SimulationError, match=r"no programs for length 9 and a batch of at most 4"):
        DeviceMemory(bundle, manifest, Training(batch=4, length=9))
    other = Bundle.open(exported_once("two-labels", batches=(4,), labels=("good", "bad"))).manifest
    with pytest.raises(SimulationError, match="other units or another head"):
        DeviceMemory(bundle, other, Training(batch=2, length=8))


def test_a_bundle_that_was_not_measured_is_refused(tiny):
    with pytest.raises(SimulationError, match="no measured memory: export it again without --no-measure"):
        DeviceMemory(tiny, Bundle.open(tiny).manifest, Training(batch=2, length=8))

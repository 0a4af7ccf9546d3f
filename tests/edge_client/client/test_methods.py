"""Every method that devices can run: its round by itself, and jobs of each kind to their end by two devices.

What a method's settings come to on a device is one of few kinds of steps, which jobs of the others would only repeat.
"""

import threading
from itertools import pairwise

import numpy as np
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME
from edge_client.training.round import client_round
from edge_client.training.session import TrainingSession
from server.jobs.completion import complete
from server.jobs.presets import PRESETS, merged, start_of
from server.jobs.settings import JobSettings
from server.simulation.methods.methods import METHODS
from server.storage.jobs import find_job
from tests.adapters import everywhere
from tests.edge_client.bench import EXAMPLES
from tests.edge_client.conftest import PATIENCE

ROUNDS, STEPS = 2, 2
NOT_ON_DEVICES = {
    "fwdllm+": "a device does not know how the last round moved the weights, and no report tells how gradients vary",
}
ON_DEVICES = [method for method in METHODS if method not in NOT_ON_DEVICES]
JOBS = [
    ("classifier", "default", "epoch"),
    *(("spry", preset, "epoch") for preset in PRESETS if preset != "default"),
]
"""Without units, and the presets, whose plans the server makes; test_parity.py has each kind of report."""


def settings_of(method: str, preset: str, mode: str, folder, **training) -> dict:
    row = METHODS[method]
    rates = {"default": row.default, "paper": row.paper}.get(preset, {})
    training = {"mode": mode, "batch": 4, "length": 8, "iterations": STEPS} | training
    if mode == "iteration":
        training["optimizer"] = "sgd"  # the server takes the step
    size = {"rounds": ROUNDS, "per_round": 2, "over_selection": 1, "training": training}
    return merged(start_of(manifests.read(folder / FILE_NAME), preset), row.settings, rates, size)


@pytest.fixture
def folder(method, exported_once, trainable):
    """A bundle with the adapter that the method is about."""
    adapter = METHODS[method].adapter
    return trainable if adapter is None else exported_once(adapter, batches=(4,), adapter=everywhere(adapter))


@pytest.mark.parametrize("method", ON_DEVICES)
def test_a_devices_round_moves_the_units_and_the_head(folder, method):
    """By settings that a server takes."""
    session = TrainingSession(Bundle.open(folder), "onnx", threads=1)
    try:
        settings = JobSettings.model_validate(settings_of(method, "default", "epoch", folder))
        task = session.task(complete(settings, session.manifest).training)
        weights = session.bundle.initial_adapter()
        found = client_round(task, session.model(task), weights, session.data(task, EXAMPLES))
    finally:
        session.close()
    moved = {name for name, value in found.tensors.items() if not np.array_equal(value, weights[name])}
    assert moved & session.manifest.head_names
    assert bool(moved - session.manifest.head_names) == bool(session.manifest.units)
    assert found.report.steps == STEPS


@pytest.mark.parametrize(("method", "preset", "mode"), JOBS)
def test_two_devices_end_a_job(fleet, folder, method, preset, mode):
    ends_by_two_devices(fleet, folder, settings_of(method, preset, mode, folder), mode)


def test_two_devices_end_a_job_of_what_each_can_hold(fleet, trainable):
    settings = settings_of("spry", "default", "epoch", trainable, estimator="auto")
    ends_by_two_devices(fleet, trainable, settings, "epoch")


def ends_by_two_devices(fleet, folder, settings, mode):
    fleet.job(fleet.upload(folder), **settings)
    both = threading.Barrier(2)

    def together(event):
        """Nobody trains before both have a place, so that each round has both."""
        fleet.events.append(event)
        if event.kind == "task":
            both.wait(PATIENCE)

    clients = [fleet.client(home=f"home{number}", on_event=together) for number in range(2)]
    threads = [threading.Thread(target=client.run, kwargs={"rounds": ROUNDS}) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    job = fleet.ended()
    assert (job["done"], job["version"]) == (ROUNDS, ROUNDS * (STEPS if mode == "iteration" else 1))
    assert not fleet.told("failed") + fleet.told("refused")
    assert len(fleet.told("progress")) == 2 * ROUNDS * STEPS  # nobody was too late for a step
    rounds = fleet.call("GET", "/v1/jobs/topics/rounds").json()
    assert [(one["state"], one["tasks"], one["result"]["reports"]) for one in rounds] == [
        ("done", {"accepted": 2}, 2)
    ] * ROUNDS
    each_version_moves(fleet)


def each_version_moves(fleet):
    """Units and head, by every step of mode iteration, or every round."""
    store = fleet.app.state.services.store
    job = find_job(store, "topics")
    manifest = store.bundles.manifest(job.bundle)
    head = manifest.head_names
    versions = [store.models.load(job, version).weights for version in range(job.version + 1)]
    for before, after in pairwise(versions):
        moved = {name for name, value in after.items() if not np.array_equal(value, before[name])}
        assert moved & head
        assert bool(moved - head) == bool(manifest.units)


def test_the_others_have_an_estimator_that_devices_lack():
    assert {name for name, method in METHODS.items() if method.estimator} == set(NOT_ON_DEVICES)

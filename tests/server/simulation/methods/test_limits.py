"""Central differences at their limit: the slopes of forward mode, and what differences tend to."""

import numpy as np
import pytest

from edge_client.estimators.central import Central
from edge_client.estimators.forward import Forward
from server.simulation.compute.work import Worker
from server.simulation.methods.limits import ClosestLimit, at_limit
from server.simulation.methods.methods import METHODS
from server.simulation.plan import plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.strategy.state import ServerState

LENGTH = 8


@pytest.fixture
def worker(model_folder, writing):
    data = writing(rows=60, test=4)

    def opened(method, differences="limit", **training):
        plan = plan_for(
            method=method, preset="default", model=str(model_folder), data=str(data), seed=5, clients=6, alpha=1.0,
            adapter={"method": "lora"}, differences=differences,
            settings={"per_round": 5, "training": {"length": LENGTH, "batch": 4, "iterations": 1, **training}},
        )  # fmt: skip
        return Worker(plan)

    return opened


@pytest.fixture
def weights(worker):
    """Weights that give each parameter a slope, and are too small for a loss that is sure of itself and has none."""
    rng = np.random.default_rng()
    initial = worker("fedmezo").learner.initial
    return {name: rng.normal(0, 0.1, value.shape).astype(np.float32) for name, value in initial.items()}


def members(worker):
    fleet = Fleet(worker.plan, worker.manifest, 6, 4, crew=None)  # nobody is called
    return fleet._members(RunState(ServerState(0, worker.learner.initial)), evaluate=False)


def moves(worker, weights, last_change=None):
    """Return what each client's one step changes: the slopes along its directions, times the directions."""
    trained = worker.train(members(worker), weights, last_change or {})
    return [
        np.concatenate([(one.update[name] - weights[name]).reshape(-1) for name in sorted(one.update)])
        for one in trained
    ]


def test_they_are_the_derivatives_of_forward_mode(worker, weights):
    shared = {"directions": 3, "learning_rate": 1.0, "head_learning_rate": 1.0}
    limit = moves(worker("fedmezo", **shared), weights)
    forward = moves(worker("fedfgd", per_example=False, head="joint", **shared), weights)
    for ours, expected in zip(limit, forward, strict=True):
        assert np.abs(expected).mean() > 1e-3
        assert np.linalg.norm(ours - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("method", ["fedmezo", "baffle+", "fwdllm+"])
def test_differences_tend_to_them(worker, weights, method):
    rng = np.random.default_rng(3)
    change = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in weights.items()}
    limit, taken = (
        moves(worker(method, how, sigma=3e-3, iterations=1, epochs=1), weights, change) for how in ("limit", "taken")
    )
    steepest = max(map(np.linalg.norm, taken))  # a client's one slope may be none, by chance
    for ours, expected in zip(limit, taken, strict=True):
        assert np.linalg.norm(ours - expected) < 0.02 * steepest


def test_other_estimators_stay_as_they_are():
    assert at_limit(Forward) is Forward
    assert issubclass(at_limit(Central), Central)
    assert at_limit(METHODS["fwdllm+"].estimator) is ClosestLimit

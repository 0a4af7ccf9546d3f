"""The step that follows what devices agree on; the other aggregations stand in `test_replay.py`."""

import numpy as np
import pytest

from edge_client.bundle.names import ERROR
from edge_client.training.optimizers import server_step
from edge_client.training.server_optimizers import SUREST
from edge_client.wire.protocol import ServerOptimizer, ServerOptimizers


def step(kind, weights, change, state, **options):
    server_step(weights, change, state, ServerOptimizers(ServerOptimizer(kind, 0.01, **options)), frozenset())


@pytest.mark.parametrize(("holders", "times"), [(1, 1), (9, 3), (400, SUREST)])
def test_what_all_want_is_a_step_as_many_times_longer_as_the_root_of_their_number(holders, times):
    change = np.array([1e-7, -3.0, 0.0], np.float32)
    weights, state = {"w": np.zeros(3, np.float32)}, {ERROR + "w": np.abs(change) / np.float32(np.sqrt(holders))}
    step("fedsnr", weights, {"w": change}, state, beta1=0.0)
    np.testing.assert_allclose(weights["w"], [0.01 * times, -0.01 * times, 0.0], rtol=1e-5)


def test_a_change_that_is_known_as_one_takes_fedyogis_step():
    random = np.random.default_rng(4)
    moved, states = [{"w": np.zeros(5, np.float32)}, {"w": np.zeros(5, np.float32)}], ({}, {})
    for _ in range(3):
        change = {"w": random.normal(size=5).astype(np.float32)}
        for kind, weights, state in zip(("fedsnr", "fedyogi"), moved, states, strict=True):
            step(kind, weights, change, state)
    np.testing.assert_array_equal(moved[0]["w"], moved[1]["w"])
    assert states[0].keys() == states[1].keys()
    assert np.abs(moved[0]["w"]).min() > 0


@pytest.mark.parametrize("kind", ["fedsnr", "fedyogi", "fedavg"])
def test_an_error_is_of_one_step(kind):
    state = {ERROR + "w": np.ones(2, np.float32)}
    step(kind, {"w": np.zeros(2, np.float32)}, {"w": np.ones(2, np.float32)}, state)
    assert ERROR + "w" not in state

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import DataError
from server.simulation.data.draws import Purpose, log_gammas, order


def test_numbers_are_pinned():
    """A seed means the same clients with every version of numpy; where this fails, old runs cannot be resumed."""
    assert order(12, 7, Purpose.ROWS).tolist() == [3, 9, 7, 6, 4, 2, 11, 10, 0, 1, 5, 8]
    assert order(12, 7, Purpose.CLIENTS, 3).tolist() == [5, 10, 3, 4, 7, 11, 1, 0, 9, 6, 8, 2]
    assert log_gammas(np.array([0.01, 2.0]), np.arange(2), 7).round(9).tolist() == [
        [-228.299146118, -0.756208235],
        [-10.022281304, 0.787147665],
    ]


@given(st.integers(0, 500), st.integers(0, 2**64 - 1), st.sampled_from(Purpose), st.integers(0, 2**20))
def test_an_order_has_each_number_once(count, seed, purpose, number):
    assert sorted(order(count, seed, purpose, number).tolist()) == list(range(count))


def test_orders_differ_by_all_that_they_depend_on():
    drawn = [
        order(50, seed, purpose, number).tolist() for seed in (0, 1, 2**63) for purpose in Purpose for number in (0, 1)
    ]
    assert len({tuple(one) for one in drawn}) == len(drawn)


@pytest.mark.parametrize("shape", [0.05, 0.9, 1.0, 30.0])
def test_gammas_have_their_mean_and_variance(shape):
    seed, count = random.getrandbits(64), 40_000
    values = np.exp(log_gammas(np.array([shape]), np.arange(count), seed))[:, 0]
    assert values.min() >= 0
    assert values.mean() == pytest.approx(shape, abs=6 * np.sqrt(shape / count)), seed
    spread = shape * np.sqrt((2 + 6 / shape) / count)
    assert values.var() == pytest.approx(shape, abs=6 * spread), seed


def test_a_row_of_gammas_is_the_same_alone():
    shapes = np.array([0.1, 1.0, 10.0])
    together = log_gammas(shapes, np.arange(200), 5)
    assert np.isfinite(together).all()
    assert np.array_equal(together[150:160], log_gammas(shapes, np.arange(150, 160), 5))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range(seed):
    with pytest.raises(DataError, match=f"the seed must be from 0 to {2**64 - 1}, got {seed}"):
        order(3, seed, Purpose.ROWS)

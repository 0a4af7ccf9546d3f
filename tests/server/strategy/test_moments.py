"""Moments that are joined, against numbers worked out by hand, and whatever else their devices tell."""

import numpy as np
import pytest

from edge_client.bundle.manifest import FeatureSpec
from edge_client.training.features import Moments
from server.strategy import moments
from server.strategy.features import joined
from server.strategy.moments import MOST_TIMES, HeadChange, usual_change

STEP = np.array([[1.0, 0.0], [-1.0, 0.0]])
"""A change of two classes along the first of two features."""


def told(first=1.0, second=1.0, mean=(0.0, 0.0), rows=8):
    """Build the moments of a device with two independent features."""
    return Moments(rows, np.array(mean, np.float32), np.array([first, 0.0, second], np.float32))


CHANGE = HeadChange(STEP, np.zeros(2))


def believed(state, told, change=CHANGE):
    return moments.believed(state, told, change)


def variances(told):
    return [float(one.products[0]) for one in told]


def test_who_varies_twice_as_much_as_usual_along_the_step_is_left_out():
    """The second feature has no part in the step: there it takes more until all features together vary too much."""
    honest = [told(1.0), told(1.1), told(0.9)]
    assert len(believed({}, [*honest, told(1.9)])) == 4
    assert variances(believed({}, [*honest, told(2.3)])) == pytest.approx([1.0, 1.1, 0.9])
    assert len(believed({}, [*honest, told(second=2.5)])) == 4
    assert variances(believed({}, [*honest, told(second=4.0)])) == pytest.approx([1.0, 1.1, 0.9])


def test_a_mean_far_from_the_others_is_a_variance_too():
    honest = [told(), told(), told()]
    assert len(believed({}, [*honest, told(mean=(0.9, 0.0))])) == 4  # 1 + 0.81
    assert len(believed({}, [*honest, told(mean=(1.1, 0.0))])) == 3  # 1 + 1.21
    assert len(believed({}, [*honest, told(mean=(1e6, 0.0))])) == 3


def test_three_of_ten_that_lie_alike_are_left_out_however_far_they_go():
    for size in (3.0, 30.0, 1e6):
        assert variances(believed({}, [told(1.0)] * 7 + [told(size)] * 3)) == [1.0] * 7


def test_devices_differ_in_many_features_and_are_believed():
    """The rows of one say little of hundreds of features: what it tells of most directions may be far off."""
    generator, width, rows = np.random.default_rng(), 60, 20
    weight, fleet = generator.normal(size=(3, width)), []
    for _ in range(10):
        features = generator.normal(size=(rows, width))
        about = features - features.mean(0)
        products = (about.T @ about / rows)[np.triu_indices(width)].astype(np.float32)
        fleet.append(Moments(rows, features.mean(0).astype(np.float32), products))
    assert len(believed({}, fleet, HeadChange(weight, np.zeros(3)))) >= 9


def test_none_counts_more_rows_than_the_median_device():
    assert [one.rows for one in believed({}, [told(rows=8), told(rows=10), told(rows=10**9)])] == [8, 10, 10]


def test_what_is_known_of_earlier_rounds_counts_as_a_device():
    state = joined({}, [told()] * 5)
    assert variances(believed(state, [told(1.0), told(9.0), told(9.0)])) == [1.0]
    assert variances(believed({}, [told(1.0), told(9.0), told(9.0)])) == [1.0, 9.0, 9.0], "most of them say so"


def test_of_few_devices_what_is_too_large_is_made_smaller():
    """Features grow as the units train, and who tells it alone may say the truth: so much of it is believed."""
    state = joined({}, [told()])
    (one,) = believed(state, [told(4.0, 4.0)])
    np.testing.assert_allclose(one.products, [MOST_TIMES, 0.0, MOST_TIMES], rtol=1e-5)
    (one,) = believed({}, [told(4.0)])
    assert one.products[0] == 4.0, "nobody can say otherwise"
    assert believed(state, []) == []


def test_a_layer_without_a_bias_is_stepped_by_products_about_zero():
    honest, change = [told(mean=(3.0, 0.0))] * 4, HeadChange(STEP, None)
    assert len(believed({}, [*honest, told(mean=(4.0, 0.0))], change)) == 5  # 17 of 10
    assert len(believed({}, [*honest, told(mean=(4.6, 0.0))], change)) == 4  # 22 of 10


def test_variances_alone_are_compared_alike():
    def alone(first):
        return Moments(8, np.zeros(2, np.float32), np.array([first, 1.0], np.float32))

    assert variances(believed({}, [alone(1.0), alone(1.2), alone(3.0)])) == pytest.approx([1.0, 1.2])


@pytest.mark.parametrize("bias", ["bias", ""])
def test_the_usual_change_of_the_layer_follows_no_device_that_goes_far(bias):
    start = {"weight": np.ones((2, 2), np.float32), "bias": np.zeros(2, np.float32)}
    honest = {"weight": start["weight"] + 3, "bias": start["bias"] + 4}
    if not bias:
        start.pop("bias")
    far = {name: -1000 * value for name, value in honest.items()}
    spec = FeatureSpec("weight", bias, 1.0)
    found = usual_change([honest, honest, far], start, spec)
    assert np.abs(found.weight).max() < 3
    assert (found.weight > 0).all()
    alone = usual_change([honest], start, spec)
    np.testing.assert_allclose(alone.weight, np.full((2, 2), 3.0))
    if bias:
        np.testing.assert_allclose(alone.bias, [4.0, 4.0])
    assert (alone.bias is None) == (not bias)

"""Means and medians against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from edge_client.estimators.registry import kind_of
from edge_client.wire.protocol import Report, Training
from edge_client.wire.scalars import Participant, ScalarReport
from server.strategy.mean import (
    Holder,
    Mean,
    bounded,
    bounded_scalars,
    mean_claim,
    mean_steps,
    weights_of,
)

START = {"a": np.zeros(2, np.float32), "b": np.ones(1, np.float32), "head": np.zeros(1, np.float32)}


def test_a_parameter_is_averaged_over_its_own_holders():
    mean = Mean(START)
    mean.add({"a": np.array([1, 2], np.float32), "head": np.array([4], np.float32)}, 1)
    mean.add({"a": np.array([3, 6], np.float32), "head": np.array([0], np.float32)}, 3)
    changes = mean.changes()
    np.testing.assert_array_equal(changes["a"], [2.5, 5.0])  # (1·1 + 3·3) / 4, (1·2 + 3·6) / 4
    np.testing.assert_array_equal(changes["head"], [1.0])
    assert "b" not in changes  # all its holders vanished


def test_a_change_is_counted_from_the_weights_before():
    mean = Mean(START)
    mean.add({"b": np.array([1.5], np.float32)}, 7)
    np.testing.assert_allclose(mean.changes()["b"], 0.5)


def test_an_error_is_that_of_a_mean_of_which_devices_agree_in_nothing():
    mean = Mean(START)
    mean.add({"a": np.array([1, 0], np.float32), "b": np.array([2], np.float32)}, 1)
    mean.add({"a": np.array([3, 0], np.float32)}, 3)
    errors = mean.errors()
    np.testing.assert_allclose(errors["a"], [np.sqrt((1 * 1) ** 2 + (3 * 3) ** 2) / 4, 0], rtol=1e-6)
    np.testing.assert_allclose(errors["b"], [1.0])  # of one: as far as it goes
    assert set(errors) == {"a", "b"}


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(-10, 10, width=32)), min_size=1, max_size=20))
def test_the_mean_is_the_weighted_mean(reports):
    mean = Mean(START)
    for examples, value in reports:
        mean.add({"b": np.array([value], np.float32)}, examples)
    weights, values = zip(*reports, strict=True)
    np.testing.assert_allclose(mean.changes()["b"] + 1, np.average(values, weights=weights), atol=1e-5)


@pytest.mark.parametrize(
    ("counts", "weights"),
    [
        ([8, 8, 8], [8, 8, 8]),
        ([1, 2, 5], [1, 2, 2]),
        ([2, 5], [2, 5]),
        ([2**40, 8, 8, 8], [8, 8, 8, 8]),
        ([2**40, 8, 8, 16], [16, 8, 8, 16]),
        ([2**40, 2**41, 8, 8, 8], [24, 24, 8, 8, 8]),
        ([2**40, 8], [24, 8]),
        ([], []),
    ],
)
def test_no_weight_is_far_beyond_the_median_or_beyond_what_a_second_device_has(counts, weights):
    assert bounded(counts, 3) == weights


def test_an_estimate_weighs_as_much_as_it_says(bundle):
    """Beside a true gradient one along K directions of d numbers, those of all units that share a derivative, says
    K / (K + d + 1); of the head all say the same."""
    manifest = manifests.read(bundle / FILE_NAME)
    shape = Training(batch=2, length=8, directions=2)
    size = manifest.units[0].size
    exact, forward = (
        kind_of(replace(shape, estimator=name)).inverse_variance(manifest, replace(shape, estimator=name), (0, 3))
        for name in ("exact", "forward")
    )
    assert exact == {0: 1.0, 3: 1.0}
    assert forward == {0: 2 / (2 + 2 * size + 1), 3: 2 / (2 + 2 * size + 1)}
    assert kind_of(replace(shape, estimator="mixed")).inverse_variance(
        manifest, replace(shape, estimator="mixed"), (0, 3)
    ) == {
        0: 2 / (2 + size + 1),
        3: 1.0,
    }
    ours, theirs = weights_of([Holder(exact, 10), Holder(forward, 20)], 4.0, manifest)
    name, head = manifest.units[0].parameters[0].name, manifest.head[0].name
    assert ours[name] / theirs[name] == pytest.approx(10 / (20 * forward[0]))
    assert (ours[head], theirs[head]) == (10, 20)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.sets(st.integers(0, 3), min_size=1)), min_size=1, max_size=8),
    st.sampled_from([1, 1.5, 4]),
)
def test_no_report_of_scalars_owns_a_unit(told, bound):
    ones = np.ones((1, 1), np.float32)
    clients = [
        Participant(seed, tuple(sorted(units)), ScalarReport(1.0, count, ones))
        for seed, (count, units) in enumerate(told)
    ]
    found = [client.report.examples for client in bounded_scalars(clients, bound)]
    for unit in range(4):
        holders = [number for number, (_, units) in enumerate(told) if unit in units]
        counts = sorted(told[number][0] for number in holders)
        assert all(found[number] <= bound * counts[(len(counts) - 1) // 2] for number in holders)
    for (count, units), kept in zip(told, found, strict=True):
        everybody = sorted(other for other, _ in told)
        second = everybody[-2] if len(told) > 2 else everybody[-1]
        believed = min(second, bound * everybody[(len(told) - 1) // 2])
        beside = [sorted(min(other, believed) for other, also in told if unit in also) for unit in units]
        assert kept == int(min(count, believed, *(bound * one[(len(one) - 1) // 2] for one in beside)))


@pytest.mark.parametrize(
    ("values", "robust", "mean"),
    [
        ([1.0, 2.0, 3.0], False, 2.0),
        ([1.0, 2.0, 1e30], False, (1 + 2 + 4 * 2) / 3),
        ([1.0, 2.0, -1e30], False, (1 + 2 + 0) / 3),
        ([1.0, 2.0, 1e30], True, 2.0),
        ([0.0] * 3 + [0.5] * 7, True, 0.5),
        ([1e30] * 3 + [0.5] * 3 + [0.7] * 4, True, 0.7),
        ([1e30], True, 1e30),
    ],
)
def test_a_number_that_devices_say_of_themselves(values, robust, mean):
    assert mean_claim(values, [10] * len(values), 4.0, robust=robust) == pytest.approx(mean)


def test_no_device_weighs_more_than_others_in_what_it_says():
    assert mean_claim([0.0, 0.0, 1.0], [10, 10, 10**9], 4.0, robust=False) == pytest.approx(1 / 3)
    assert mean_claim([0.0, 1.0], [10, 10**9], 4.0, robust=False) == pytest.approx(4 / 5)


def test_the_steps_of_a_change_are_bounded_by_those_of_the_median_device():
    """Whoever claims a billion would divide the head's gradient by them."""
    reports = [Report(10, 4, 1.0), Report(10, 4, 1.0), Report(10**9, 2**31, 1.0)]
    assert mean_steps(reports, [1.0, 1.0, 1.0], 4.0) == pytest.approx((4 + 4 + 8) / 3)
    assert mean_steps(reports, [1.0, 1.0, 1.5], 4.0) == pytest.approx((4 + 4 + 12) / 3), "its head goes further"
    assert mean_steps(reports, [1.0, 1.0, 1e9], 4.0) == pytest.approx((4 + 4 + 16) / 3)
    assert mean_steps(reports, [0.0, 0.0, 0.0], 1.0) == pytest.approx((4 + 4 + 8) / 3)

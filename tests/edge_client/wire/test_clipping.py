"""Test what leaves a device of a private job: no longer than its clip, and silent about its examples."""

from dataclasses import asdict

import numpy as np
import pytest

from edge_client.wire.clipping import changes_of, clipped, length_of, silent
from edge_client.wire.protocol import EvaluationReport, Report


def test_a_long_update_keeps_its_direction_and_a_short_one_its_bits():
    rng = np.random.default_rng()
    start = {"a": rng.normal(size=(3, 2)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)}
    update = {name: value + rng.normal(size=value.shape).astype(np.float32) for name, value in start.items()}
    length = length_of(changes_of(start, update))
    assert length == pytest.approx(
        float(np.linalg.norm(np.concatenate([(update[n] - start[n]).ravel() for n in start])))
    )
    short = clipped(start, update, length / 4)
    for name, value in short.items():
        np.testing.assert_allclose(value - start[name], (update[name] - start[name]) / 4, atol=1e-6)
        assert value.dtype == np.float32
    assert length_of(changes_of(start, short)) == pytest.approx(length / 4, rel=1e-5)
    for name, value in clipped(start, update, length * 2).items():
        np.testing.assert_allclose(value, update[name], atol=1e-7)


def test_a_silent_report_is_the_same_for_all_examples():
    told = EvaluationReport(
        held_back=4, right_global=3, right_personal=2, sums_global={"f1": 1.0}, sums_personal={"f1": 2.0}
    )
    one = Report(5, 3, 0.7, 2.0, 9, measured=64, **asdict(told))
    other = Report(900, 3, 9.9, 2.0, 9, held_back=1, right_personal=1)
    assert silent(one) == silent(other)
    assert (silent(one).steps, silent(one).seconds) == (3, 2.0)

"""Norms and medians against numbers worked out by hand, and what a job that moves little still takes."""

import numpy as np

from server.rounds.outliers import FIRST_ROUNDS, beyond, norms, usual
from tests.server.rounds.test_rounds import AVERAGE, play

START = {"a": np.zeros(2, np.float32), "b": np.ones(1, np.float32), "head": np.zeros(1, np.float32)}


def test_norms_are_of_a_weight_apart_for_units_and_head():
    update = {"a": np.array([3, 4], np.float32), "head": np.array([2], np.float32)}
    found = norms(update, START, frozenset({"head"}))
    assert found == {"units": (25 / 2) ** 0.5, "head": 2.0}


def test_only_what_is_far_beyond_the_median_is_refused():
    known = usual([{"units": n, "head": 1.0} for n in (1.0, 2.0, 3.0)])
    assert beyond({"units": 39.0, "head": 1.0}, known, 20) is None
    assert "units move by 41 a weight, 20 times" in (beyond({"units": 41.0, "head": 1.0}, known, 20) or "")
    assert "its head" in (beyond({"units": 1.0, "head": 1000.0}, known, 20) or "")


def test_the_larger_median_counts():
    late, first = [{"units": n} for n in (1e-4, 2e-4, 3e-4)], [{"units": n} for n in (1.0, 2.0, 9.0)]
    assert usual(late, first) == usual(first, late) == {"units": 2.0}
    assert usual(late, first[:2]) == {"units": 2e-4}


def test_two_updates_are_no_median():
    assert usual([{"units": 1.0}] * 2) == {}
    assert beyond({"units": 1e9}, {}, 20) is None


def test_a_fleet_that_does_not_move_refuses_nobody():
    assert beyond({"units": 1.0}, usual([{"units": 0.0}] * 5), 20) is None


def test_what_was_usual_at_the_start_is_taken_from_a_fleet_that_hardly_moves(server, bundle_name):
    server.create_job(bundle_name, per_round=3, over_selection=1, optimizers=AVERAGE, norm_bound=5)
    server.advance()
    devices = [server.device() for _ in range(3)]
    for _ in range(FIRST_ROUNDS):
        play(server, devices, [0.1, 0.1, 0.1])
    for _ in range(3):
        play(server, devices, [0.0001, 0.0001, 0.0001])
    play(server, devices, [0.0001, 0.0001, 0.2])
    assert server.job()["refused"] == {}
    assert server.job()["version"] == FIRST_ROUNDS + 4

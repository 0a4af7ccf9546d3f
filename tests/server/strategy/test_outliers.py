"""Norms and medians against numbers worked out by hand, and what a job that moves little still takes."""

import numpy as np
from safetensors.numpy import load

from edge_client.bundle.manifest import Parameter, Unit
from server.strategy.outliers import FIRST_ROUNDS, beyond, norms, usual
from tests.server.conftest import encode
from tests.server.rounds.test_rounds import AVERAGE, play

START = {"a": np.zeros(2, np.float32), "b": np.ones(1, np.float32), "head": np.zeros(1, np.float32)}


def test_norms_are_of_a_weight_apart_for_units_and_head():
    update = {"a": np.array([3, 4], np.float32), "head": np.array([2], np.float32)}
    found = norms(update, START, frozenset({"head"}))
    assert found == {"units": (25 / 2) ** 0.5, "head": 2.0, "of head head": 2.0}


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


def test_a_fleet_that_moves_further_as_one_is_heard(server, bundle_name):
    """Units hardly move in the first round behind a task layer of zeros; a liar among them is still told."""
    server.create_job(bundle_name, per_round=4, over_selection=1, optimizers=AVERAGE, norm_bound=5)
    server.advance()
    devices = [server.device() for _ in range(4)]
    play(server, devices, [0.001, 0.001, 0.001, 0.001])
    play(server, devices, [0.02, 0.022, 0.018, 0.02])
    assert server.job()["refused"] == {}
    play(server, devices, [0.02, 0.4, 0.018, 0.02])
    assert server.job()["refused"] == {"norm": 1}
    assert server.job()["version"] == 3


def test_a_unit_is_compared_with_itself():
    """Values move 61 times as far as queries here, and an honest client that holds them is no outlier."""
    queries = [{"units": 1.0, "unit query": 1.0} for _ in range(9)]
    value = {"units": 61.0, "unit value": 61.0}
    assert beyond(value, usual(queries), 20) is None  # nobody has held it: the square of the bound
    assert "its unit value move by 401" in (beyond({"units": 401.0, "unit value": 401.0}, usual(queries), 20) or "")
    known = usual([*queries, *[value] * 3])
    assert beyond({"units": 1000.0, "unit value": 1000.0}, known, 20) is None
    assert "20 times the median" in (beyond({"units": 1230.0, "unit value": 1230.0}, known, 20) or "")
    assert "21 times the median" in (beyond({"units": 21.0, "unit query": 21.0}, known, 20) or "")


def test_norms_of_earlier_versions_are_read():
    """They are of all units together."""
    known = usual([{"units": 1.0, "head": 1.0}] * 3)
    assert beyond({"units": 61.0, "unit value": 61.0, "head": 19.0}, known, 20) is None
    assert beyond({"units": 401.0, "unit value": 401.0}, known, 20)
    assert beyond({"units": 1.0, "unit value": 1.0, "head": 21.0}, known, 20)


def test_the_norm_of_each_unit_is_known():
    unit = Unit("b", ("block",), (Parameter("b", (1,)),))
    update = {"a": np.array([3, 4], np.float32), "b": np.array([3], np.float32)}
    assert norms(update, START, frozenset(), [unit])["unit b"] == 2.0


def test_values_are_not_refused_beside_queries(server, bundle_name):
    server.create_job(bundle_name, per_round=4, over_selection=1, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(4)]
    for _ in range(5):
        tasks = [device.task() for device in devices]
        for device, task in zip(devices, tasks, strict=True):
            device.send(task, moved(device, task, 6.1 if 0 in task["units"] else 0.1))
        server.advance()
    assert server.job()["refused"] == {}
    assert server.job()["version"] == 5
    task = next(task for task in (device.task() for device in devices) if 0 not in task["units"])
    owner = next(device for device in devices if device.check_in()["task"]["id"] == task["id"])
    assert owner.send(task, moved(owner, task, 41.0), 422)["code"] == "norm"  # at once beyond the square of the bound


def moved(device, task, change):
    """The units alone; a head is everybody's."""
    manifest = device.server.store.bundles.manifest(task["bundle"])
    head = {parameter.name for parameter in manifest.head}
    tensors = load(device.update(task, change))
    start = device.weights("job")
    return encode({name: start[name] + np.float32(0.1) if name in head else value for name, value in tensors.items()})

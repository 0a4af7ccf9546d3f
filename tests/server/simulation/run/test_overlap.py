"""Rounds that take what comes, by a simulated clock."""

import numpy as np
import pytest
from pydantic import ValidationError

from server.errors import SimulationError
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import Worker
from server.simulation.run.clock import slowness
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.strategy.state import ServerState
from tests.server.simulation.runs import lines, small, write_data

ROUNDS = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"), rows=120)


def late(model_folder, data, **settings):
    mean = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    job = {"schedule": "buffered", "buffer": 3, "per_round": 6, "optimizers": mean, "weight_bound": 1e6}
    return small(model_folder, data, rounds=ROUNDS, speeds=10.0, settings=job | settings)


def fleet_of(plan):
    worker = Worker(plan)
    fleet = Fleet(plan, worker.manifest, worker.population.clients, len(worker.tested), Alone(worker))
    return worker, fleet, RunState(ServerState(0, worker.learner.initial))


def test_each_round_is_the_mean_of_what_came_by_how_old_it_is(model_folder, data):
    """Every client trained again by itself, and averaged here."""
    worker, fleet, state = fleet_of(late(model_folder, data, measure_features=False))
    ages: list[int] = []
    for _ in range(ROUNDS):
        members, _ = fleet._overlap.gathered(state, evaluate=False)
        bases = {**state.bases, state.model.version: state.model.weights}
        sums, weights = {}, {}
        trained = [worker.train([member], bases[member.task.version], {})[0] for member in members]
        bias = worker.manifest.features.bias
        moves = [
            one.update[bias] - bases[member.task.version][bias] for one, member in zip(trained, members, strict=True)
        ]
        most = 2 * np.median(np.linalg.norm(moves, axis=1))  # no device moves the bias further
        for member, one, move in zip(members, trained, moves, strict=True):
            base = bases[member.task.version]
            one.update[bias] = base[bias] + move * min(1, most / np.linalg.norm(move))
            age = state.model.version - member.task.version
            ages.append(age)
            for name, value in one.update.items():
                share = one.report["examples"] * (value.astype(np.float64) - base[name]) / np.sqrt(1 + age)
                sums[name] = sums.get(name, 0) + share
                weights[name] = weights.get(name, 0) + one.report["examples"]
        following, line = fleet.play(state)
        for name, value in state.model.weights.items():
            moved = sums[name] / weights[name] if name in sums else 0
            np.testing.assert_allclose(following.model.weights[name], value + moved, atol=2e-5)
        assert line["staleness"] == pytest.approx(np.mean(ages[-3:]))
        state = following
    assert max(ages) > 1


def test_who_is_at_work_goes_on(model_folder, data):
    """No more than may be, each client once, and time goes forward by less than the slowest takes."""
    plan = late(model_folder, data, max_staleness=2)
    _, fleet, state = fleet_of(plan)
    held: dict[int, int] = {}
    for _ in range(ROUNDS):
        members, _ = fleet._overlap.gathered(state, evaluate=False)
        following, line = fleet.play(state)
        clients = [one.client for one in following.underway]
        assert len(set(clients)) == len(clients)
        assert sum(one.slot >= 0 for one in following.underway) <= 6, "the others are done for and do not know it"
        assert len({member.client for member in members}) == 3
        assert all(following.round - one.base <= 3 for one in following.underway if one.slot >= 0)
        assert line["staleness"] <= 2
        assert following.clock >= state.clock
        assert set(following.bases) == {one.base for one in following.underway if one.slot >= 0}
        for member in members:
            for unit in member.task.units:
                held[unit] = held.get(unit, 0) + 1
        state = following
    assert set(held) == set(range(len(fleet.manifest.units))), "no unit waits for slow clients alone"


def test_a_round_that_waits_takes_as_long_as_its_slowest(model_folder, data):
    waits = small(model_folder, data, rounds=3, speeds=10.0)
    same = small(model_folder, data, rounds=3)
    _, fleet, state = fleet_of(waits)
    slow = slowness(12, 10.0, waits.seed)
    for _ in range(3):
        members = fleet._members(state, evaluate=False)
        following, line = fleet.play(state)
        longest = max(slow[member.client] for member in members) * 2 * line["passes"]
        assert following.clock - state.clock == pytest.approx(longest, rel=0.2)  # their passes are nearly the mean
        state = following
    _, fleet, other = fleet_of(same)
    for _ in range(3):
        other, line = fleet.play(other)
        assert "clock" not in line
    for name, value in state.model.weights.items():
        np.testing.assert_array_equal(other.model.weights[name], value, err_msg="the clock moves no weight")


def test_slowness_is_spread_evenly_by_ratio():
    slow = sorted(slowness(8, 10.0, seed=3))
    assert slow[0] == 1
    np.testing.assert_allclose(np.diff(np.log(slow)), np.log(10) / 7)
    assert slowness(8, 10.0, seed=3) != slowness(8, 10.0, seed=4)
    assert slowness(1, 10.0, seed=3) == [1]


@pytest.mark.parametrize(
    ("method", "more", "why"),
    [
        ("fwdllm+", {}, "method fwdllm\\+ needs rounds that wait"),
        ("spry", {"mode": "iteration"}, "schedule buffered needs mode epoch"),
    ],
)
def test_what_needs_rounds_that_wait_is_refused(method, more, why, model_folder, data):
    with pytest.raises((SimulationError, ValidationError), match=why):
        small(model_folder, data, method, settings={"schedule": "buffered"}, **more)


def test_lines_tell_the_clock(model_folder, data, tmp_path):
    from tests.server.simulation.runs import done

    plan = late(model_folder, data)
    told = lines(done(plan.model_copy(update={"settings": plan.settings.model_copy(update={"rounds": 3})}), tmp_path))
    clocks = [line["clock"] for line in told]
    assert clocks == sorted(clocks)
    assert all("staleness" in line for line in told)

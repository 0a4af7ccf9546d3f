"""Which nodes of a federation take part in a round, and what each is given."""

import pytest

from edge_client.wire.protocol import CheckIn, Training
from server.flower.config import hosted
from server.flower.fleet import NOWHERE, NodeFleet, NodeOffer
from server.jobs.settings import JobSettings
from server.policy.assignment import Needs, RoundSlot
from server.simulation.data.population import sampled
from tests.edge_client.toy import B, K, T, Toy

MANIFEST = Toy().manifest()
TRAINING = {"batch": B, "length": T, "directions": K}


def fleet_of(**settings):
    wanted = {"per_round": 2, "seed": 3, "training": TRAINING} | settings
    return NodeFleet(hosted(JobSettings.model_validate(wanted), MANIFEST), MANIFEST, "b" * 64)


def offer(memory=None, position=NOWHERE, runtimes=("numpy",), bundle="b" * 64, **said):
    return NodeOffer(CheckIn(list(runtimes), 10, memory, **said), bundle, position)


def needed(*units, low_memory=False):
    """The bytes that a step of some units takes."""
    needs = Needs(MANIFEST, Training(**TRAINING))
    return needs.fit(RoundSlot(0, units), ["numpy"], None, low_memory=low_memory).needs


def test_a_rounds_nodes_are_those_of_a_simulation_whatever_flower_calls_them():
    fleet, positions = fleet_of(per_round=3), [4, 2, 0, 1, 3]
    one = {number * 7919 + 5: offer(position=place) for number, place in enumerate(positions)}
    for round_ in (1, 2, 9):
        chosen = [one[node].position for node in fleet.selected(round_, one)]
        assert chosen == sampled(3, round_, 5, 3)


def test_each_node_has_units_and_a_seed_of_its_own():
    offers = {10: offer(), 20: offer()}
    tasks = fleet_of().assigned(4, 3, [20, 10], offers)
    assert [tasks[20].units, tasks[10].units] == [[0], [1]]
    assert tasks[20].seed != tasks[10].seed
    for task in tasks.values():
        assert (task.round, task.version, task.runtime, task.bundle) == (4, 3, "numpy", "b" * 64)


def test_a_node_with_little_memory_has_units_that_it_can_hold():
    assert needed(1) < needed(0)
    offers = {1: offer(needed(0) - 1), 2: offer(needed(0))}
    for nodes in ([1, 2], [2, 1]):
        tasks = fleet_of().assigned(1, 0, nodes, offers)
        assert {node: task.units for node, task in tasks.items()} == {1: [1], 2: [0]}


def test_a_node_that_can_hold_no_place_that_is_left_has_no_task():
    offers = {1: offer(needed(0) - 1), 2: offer(needed(0) - 1)}
    tasks = fleet_of().assigned(1, 0, [1, 2], offers)
    assert {node: task.units for node, task in tasks.items()} == {1: [1]}


def test_a_node_that_holds_one_program_at_a_time_needs_less():
    memory = needed(1, low_memory=True)
    assert memory < needed(1)
    assert fleet_of().misfit(offer(memory, low_memory=True)) is None


def test_why_a_node_takes_no_part():
    fleet = fleet_of()
    assert fleet.misfit(offer()) is None
    assert "its bundle is cccc" in (fleet.misfit(offer(bundle="c" * 64)) or "")
    assert "none of the bundle's runtimes (numpy)" in (fleet.misfit(offer(runtimes=["onnx"])) or "")
    assert "no step fits its memory" in (fleet.misfit(offer(1)) or "")


@pytest.mark.parametrize(("number", "asked"), [(1, False), (2, True), (4, True)])
def test_devices_measure_every_so_many_rounds(number, asked):
    tasks = fleet_of(device_evaluation=2).assigned(number, 0, [1], {1: offer()})
    assert tasks[1].evaluate is asked

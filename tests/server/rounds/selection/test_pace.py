"""A device goes back as far as the time of a round allows; of two blocks with two units each."""

import pytest

from tests.server.rounds.selection.test_fleet import later


@pytest.fixture
def device(server, bundle_name):
    """Alone in a job whose rounds last a hundred seconds, with memory for whatever step there is."""
    training = {"estimator": "auto", "batch": 2, "length": 8}
    server.create_job(bundle_name, training=training, per_round=1, over_selection=1, rounds=20, deadline=100)
    server.advance()
    return server.device()


def depth(task):
    return task["training"]["exact_blocks"]


def trains(server, device, seconds):
    """One round, with what the device says of its training's time."""
    task = device.task()
    device.send(task, device.update(task, seconds=seconds))
    server.advance()
    return depth(task)


def test_a_slow_device_goes_less_far_back(server, device):
    """A step takes 3 passes; 2.5 with one block by its one direction; 2 by that alone. Half of the time are 50 s."""
    assert [trains(server, device, seconds) for seconds in (58, 48, 2, 70, 3)] == [2, 1, 1, 2, 0]


def test_a_step_that_fits_half_of_the_time_stays(server, device):
    assert [trains(server, device, 50) for _ in range(2)] == [2, 2]


def test_a_device_that_is_slow_whatever_it_does_gets_the_cheapest_step(server, device):
    assert [trains(server, device, 10_000) for _ in range(3)] == [2, 0, 0]


def test_nothing_is_concluded_from_no_time(server, device):
    assert [trains(server, device, 0) for _ in range(2)] == [2, 2]


def test_who_let_a_rounds_time_run_out_takes_less(server, device):
    """Half of three passes is less than any step takes: it gets the cheapest."""
    assert depth(device.task()) == 2
    later(server, 101)
    server.advance()
    later(server, 200)
    server.advance()
    assert depth(device.task()) == 0

"""Numbers worked out by hand: half of a round's time is for training."""

import pytest

from server.policy.pace import passes_in_time


@pytest.mark.parametrize(
    ("passes", "seconds", "most"),
    [(3.0, 50.0, 3.0), (3.0, 25.0, 6.0), (2.0, 100.0, 1.0), (3.0, None, 1.5), (3.0, 0.0, None)],
    ids=["half of the time", "a quarter", "all of it", "ran out of time", "measured nothing"],
)
def test_a_devices_next_step_takes_half_of_a_rounds_time(passes, seconds, most):
    assert passes_in_time(passes, seconds, deadline=100.0) == most

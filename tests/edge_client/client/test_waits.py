"""Test how long a client waits, and how it says so."""

from datetime import datetime, timedelta

import pytest

from edge_client.client.conditions import Conditions, parse_hours
from edge_client.client.waits import MOST_LATE, Waits, lasting


@pytest.mark.parametrize("hours", ["2-3", "22-6", "11:59-12:01"])
def test_a_device_begins_within_a_minute_of_its_hours(hours):
    """From noon on by a clock that the waits move, as a client's loop does it."""
    for _ in range(50):
        now = [datetime(2026, 3, 1, 12, 30)]  # noqa: DTZ001 -- the device's own clock
        told = []
        waits = Waits(
            lambda seconds: now.__setitem__(0, now[0] + timedelta(seconds=seconds)),  # noqa: B023
            told.append, lambda: None, lambda seconds: None,
        )  # fmt: skip
        conditions = Conditions(hours=parse_hours(hours), clock=lambda: now[0])  # noqa: B023
        while (refusal := conditions.refusal()) is not None:
            waits.wait(refusal.seconds, refusal.reason, at_most_late=MOST_LATE)
        start = conditions.hours.start
        late = now[0] - datetime.combine(now[0].date(), start)
        assert timedelta(0) <= late <= timedelta(seconds=MOST_LATE + 1)
        assert len(told) == 1, "the same reason is told once"


def test_other_waits_are_spread():
    slept = []
    waits = Waits(slept.append, lambda event: None, lambda: None, lambda seconds: None)
    for _ in range(200):
        waits.wait(1000.0, "no job is running")
    assert 900 <= min(slept) < 950
    assert 1150 < max(slept) <= 1200


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0 s"), (119, "119 s"), (120, "2 min"), (3599, "1 h 0 min"), (86801, "24 h 7 min")]
)
def test_a_duration_reads_as_a_person_says_it(seconds, said):
    assert lasting(seconds) == said

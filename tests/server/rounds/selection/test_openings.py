"""Devices that are told to come when the next round opens: all of a small fleet, of a large one as many as it wants."""

import pytest

from server.rounds.selection.openings import Opening, wait_until
from tests.server.rounds.test_rounds import play


class Fleet:
    """So many devices, of which a server wants so many check-ins a second."""

    def __init__(self, count: int, rate: float = 200.0) -> None:
        self.rate = rate
        self.flow = count / max(30.0, count / rate)


def told(fleet: Fleet, opening: Opening, now: float = 0.0, asked: int = 10_000) -> list[float]:
    waits = (wait_until(opening, fleet, now) for _ in range(asked))
    return [wait for wait in waits if wait is not None]


def test_all_of_a_small_fleet_come_when_the_round_opens():
    waits = told(Fleet(10), Opening(wanted=4, lasts=20.0, at=8.0), asked=500)
    assert len(waits) == 500
    assert 8.0 <= min(waits) <= max(waits) <= 9.0


def test_of_a_large_fleet_about_as_many_come_as_are_wanted():
    """While a round lasts 50 seconds 10,000 devices ask."""
    waits = told(Fleet(100_000), Opening(wanted=100, lasts=50.0, at=8.0))
    assert 100 < len(waits) < 200
    assert 8.0 <= min(waits) <= max(waits) <= 11.0


def test_they_are_never_most_of_the_check_ins():
    assert len(told(Fleet(100_000), Opening(wanted=5000, lasts=1.0, at=0.0))) < 3000


def test_a_round_that_is_late_is_asked_for_less_and_less_often():
    early, late = (told(Fleet(10), Opening(4, 20.0, at=0.0), now, asked=100) for now in (4.0, 400.0))
    assert 1.0 <= min(early) <= max(early) <= 2.0
    assert 100.0 <= min(late) <= max(late) <= 101.0


@pytest.fixture
def waiting(server, bundle_name):
    """A second round under way, the first having taken twenty seconds; and a device that waits."""
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    holder, waiting = server.device("holder"), server.device("waiting")
    task, now = holder.task(), server.store.now
    server.store.now = lambda: now() + 20
    holder.send(task, holder.update(task))
    server.advance()
    holder.task()
    server.store.turn += 1  # it is read again in a moment
    return waiting


def test_who_waits_for_a_place_comes_when_the_next_round_opens(server, waiting):
    answer = waiting.check_in()
    assert "no free slot" in answer["reason"]
    assert 15.0 <= answer["wait"] <= 21.5


def test_a_device_that_the_job_cannot_use_waits_as_all_do(server, waiting):
    presence = server.store.presence
    presence.wait = lambda: 77.0
    assert waiting.check_in(runtimes=["other"])["wait"] == 77.0


def test_a_round_that_is_being_closed_is_asked_for_again_in_a_moment(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    play(server, [device], [0.1])
    assert device.check_in()["wait"] < 5.0

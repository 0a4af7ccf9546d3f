"""Test how far updates usually go, where so many come that it is not worked out for each."""

import pytest

from server.rounds.outcome.usual import Usual, usual_in


@pytest.fixture
def job(server, bundle):
    """A job, four of whose six devices have sent their updates."""
    made = server.create_job(server.upload(bundle), per_round=6, over_selection=1, norm_bound=2)
    server.advance()
    for device in (server.device() for _ in range(4)):
        device.send(task := device.task(), device.update(task))
    return made["id"]


@pytest.mark.parametrize("many", [4, 5])
def test_it_is_kept_for_a_while_where_many_updates_are_known(server, job, monkeypatch, many):
    monkeypatch.setattr("server.rounds.outcome.usual._MANY", many)
    monkeypatch.setattr("server.rounds.outcome.usual._SECONDS", 1000.0)
    usual = Usual(server.store.database)
    first = usual.about(job, 1)
    assert first == usual_in(server.store.database, job, 1)
    assert (usual.about(job, 1) is first) == (many == 4)


def test_an_update_too_far_is_refused_by_what_is_kept_too(server, job, monkeypatch):
    monkeypatch.setattr("server.rounds.outcome.usual._MANY", 1)
    for change, status in ((0.1, 200), (1000.0, 422)):
        device = server.device()
        task = device.task()
        device.send(task, device.update(task, change=change), status)

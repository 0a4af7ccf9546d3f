"""Test who closes a round, when workers die, are slow, or have clocks of their own."""

import time

import pytest

from server.rounds import claims, rounds
from server.rounds.claims import PROCESS, claim
from server.rounds.rounds import advance
from server.storage.jobs import find_job
from server.storage.work.rounds import newest
from tests.server.rounds.test_rounds import AVERAGE

_SHORT = 0.4


@pytest.fixture
def due(serving, bundle, database):
    """A server with a round that has all its reports."""
    with serving(**database) as server:
        server.create_job(server.upload(bundle), per_round=1, over_selection=1, optimizers=AVERAGE)
        server.advance()
        device = server.device()
        task = device.task()
        device.send(task, device.update(task))
        yield server


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(claims, "LEASE", _SHORT)


def standing(server):
    job = find_job(server.store, "job")
    with server.store.database.read() as connection:
        return job, newest(connection, job.id)


def test_a_dead_closer_of_the_same_name_and_number_is_taken_over(due, short):
    """In a container every server is process 1 of one host: whether that lives says nothing."""
    job, round_ = standing(due)
    assert claim(due.store, round_) is not None  # and dies: nobody renews it
    assert standing(due)[1].owner == PROCESS
    assert not advance(due.store, job.id)
    started = time.monotonic()
    while not advance(due.store, job.id):
        assert time.monotonic() < started + 5
        time.sleep(0.02)
    assert due.job()["version"] == 1
    assert standing(due)[1].fence == 2


def test_a_slow_worker_opens_no_round_from_weights_that_were_replaced(due):
    """It read the job before another worker published, and that the round is over after that."""
    slow, _ = standing(due)
    assert advance(due.store, slow.id)
    assert not rounds._advance(due.store, slow)
    assert advance(due.store, slow.id)
    job, round_ = standing(due)
    assert (job.version, round_.number, round_.version) == (1, 2, 1)


def test_a_slow_worker_that_closes_the_next_round_counts_it_too(due):
    slow, _ = standing(due)
    due.advance()
    device = due.device("other")
    task = device.task()
    device.send(task, device.update(task))
    assert rounds._advance(due.store, slow)
    assert (due.job()["version"], due.job()["done"]) == (2, 2)


def test_the_lease_is_of_seconds():
    assert 2 * claims.LEASE / claims._RENEWALS < claims.LEASE <= 12


def test_a_closer_at_work_keeps_its_round(due, short):
    job, round_ = standing(due)
    held = claim(due.store, round_)
    with held:
        until = time.monotonic() + 3 * _SHORT
        while time.monotonic() < until:
            assert not advance(due.store, job.id)
            time.sleep(0.02)
        rounds._finish(due.store, job, round_, held)
    assert due.job()["version"] == 1


def test_who_lost_the_lease_publishes_nothing(due, short):
    job, round_ = standing(due)
    slow = claim(due.store, round_)
    time.sleep(1.5 * _SHORT)
    other = claim(due.store, round_)
    with slow:
        rounds._finish(due.store, job, round_, slow)
        rounds._fail(due.store, job, round_, slow, "no reports")
    assert standing(due)[1].state == "closing"
    assert due.job()["version"] == 0
    with other:
        rounds._finish(due.store, job, round_, other)
    assert due.job()["version"] == due.job()["done"] == 1


def test_what_fails_gives_the_round_back_at_once(due):
    job, round_ = standing(due)
    with pytest.raises(RuntimeError, match="a defect"), claim(due.store, round_):
        raise RuntimeError("a defect")
    assert advance(due.store, job.id)


def test_what_fails_for_want_of_files_that_another_closer_cleaned_up_is_no_failure(due, short):
    _, round_ = standing(due)
    slow = claim(due.store, round_)
    time.sleep(1.5 * _SHORT)
    assert claim(due.store, round_) is not None
    with slow:
        raise RuntimeError("an update is gone")


def test_workers_on_several_machines_go_by_one_clock(due):
    job, round_ = standing(due)
    now = due.store.now
    due.store.now = lambda: now() + 3600
    assert claim(due.store, round_) is not None
    due.store.now = lambda: now() + 7200
    assert advance(due.store, job.id) is due.store.database.is_sqlite  # whose workers are on one machine

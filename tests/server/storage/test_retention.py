"""Test what is forgotten, and what must stay for those who still read it."""

import os
import time

import pytest
from sqlalchemy import func, select

from server.storage import retention
from server.storage.jobs import find_job
from server.storage.retention import sweep
from server.storage.schema import tables
from server.strategy.outliers import FIRST_ROUNDS
from tests.server.rounds.test_rounds import AVERAGE, play

DAY = 86_400.0


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(retention, "NEWEST", 2)


def numbers(server, table) -> list[int]:
    with server.store.database.read() as connection:
        return sorted(set(connection.execute(select(table.c.round)).scalars()))


def count(server, table) -> int:
    with server.store.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def later(server, days: float) -> None:
    server.store.now = lambda now=server.store.now: now() + days * DAY
    sweep(server.store, FIRST_ROUNDS)


@pytest.fixture
def old(serving, bundle, database):
    """Nine rounds, each of which refused something, and the tenth open."""
    with serving(**database) as server:
        server.create_job(
            server.upload(bundle), per_round=1, over_selection=2, minimum=1, optimizers=AVERAGE, keep=2, rounds=100
        )
        server.advance()
        good, bad = server.device("good"), server.device("bad")
        for _ in range(9):
            task = bad.task()
            bad.send(task, b"nonsense", 422)
            play(server, [good], [0.1])
            server.store.now = lambda now=server.store.now: now() + 200  # the bad one may come again
        server.store.traffic.save()
        server.good = good
        yield server


def test_details_of_old_rounds_go_and_sums_stay(old):
    before = old.job()
    rounds = old.call("GET", "/v1/jobs/job/rounds").json()
    devices = {device["id"]: (device["up"], device["down"]) for device in old.call("GET", "/v1/devices").json()}
    task = old.good.task()
    later(old, 29)
    assert numbers(old, tables.tasks) == list(range(1, 11))
    assert count(old, tables.refusals) == 9
    later(old, 2)
    assert numbers(old, tables.tasks) == [1, 2, 3, 9, 10]  # the first three, by whose norms others are measured
    assert set(numbers(old, tables.traffic)) <= {0, 1, 2, 3, 9, 10}
    assert count(old, tables.refusals) == 0
    assert numbers(old, tables.versions) == [8, 9]
    after = old.job()
    assert after["refused"] == before["refused"] == {"invalid": 9}
    assert (after["up"], after["down"], after["metrics"]) == (before["up"], before["down"], before["metrics"])
    assert [row["number"] for row in old.call("GET", "/v1/jobs/job/rounds").json()] == [row["number"] for row in rounds]
    assert {d["id"]: (d["up"], d["down"]) for d in old.call("GET", "/v1/devices").json()} == devices
    later(old, 0)  # again, with nothing to do
    assert old.job()["refused"] == {"invalid": 9}
    old.good.send(task, old.good.update(task))
    old.advance()
    assert old.job()["done"] == 10


def test_a_device_that_was_away_for_long_gets_all_weights(old):
    whole = old.good.weights("job")
    later(old, 31)
    job = find_job(old.store, "job")
    assert old.store.models.changed_since(job, 8) == whole.keys()  # one client trained all
    assert old.store.models.changed_since(job, 1) is None
    assert old.good.weights("job", since=1).keys() == whole.keys()


def test_updates_that_a_job_keeps_are_kept(serving, bundle):
    with serving() as server:
        server.create_job(server.upload(bundle), per_round=1, over_selection=1, optimizers=AVERAGE, keep_updates=True)
        server.advance()
        device = server.device()
        for _ in range(7):
            play(server, [device], [0.1])
        blobs = {path for path in server.store.blobs.folder.rglob("*") if path.is_file()}
        later(server, 100)
        assert numbers(server, tables.tasks) == list(range(1, 8))
        assert {path for path in server.store.blobs.folder.rglob("*") if path.is_file()} == blobs


def test_updates_of_rounds_that_failed_go_with_their_parts(serving, bundle):
    with serving() as server:
        server.create_job(server.upload(bundle), per_round=2, minimum=2, over_selection=1, deadline=1)
        server.advance()
        device = server.device()
        for _ in range(7):
            task = device.task()
            device.send(task, device.update(task))
            server.store.now = lambda now=server.store.now: now() + 2
            server.advance()
        later(server, 100)
        with server.store.database.read() as connection:
            named = set(connection.execute(select(tables.tasks.c.update)).scalars())
        assert numbers(server, tables.tasks) == [1, 2, 3, 7]
        assert {path.name for path in server.store.blobs.folder.rglob("*") if path.is_file()} == named


def test_the_audit_log_has_a_retention_of_its_own(old):
    entries = count(old, tables.audit)
    later(old, 300)
    assert count(old, tables.audit) == entries
    later(old, 66)
    assert count(old, tables.audit) == 0
    old.device()
    assert count(old, tables.audit) > 0


def test_what_a_cut_upload_left_goes_when_nobody_writes_to_it(old):
    left, under_way = old.store.blobs.partial(), old.store.blobs.partial()
    for path in (left, under_way):
        path.write_bytes(b"half")
    hours_ago = time.time() - 2 * 3600
    os.utime(left, (hours_ago, hours_ago))
    later(old, 0)
    assert not left.exists()
    assert under_way.exists()


def test_a_copy_that_a_killed_evaluation_was_lent_goes(old):
    blobs = old.store.blobs
    with blobs.lent(blobs.put(b"held out")) as file:
        later(old, 0)
        assert file.exists()
        hours_ago = time.time() - 2 * 3600
        os.utime(file.parent, (hours_ago, hours_ago))
        later(old, 0)
        assert not file.parent.exists()

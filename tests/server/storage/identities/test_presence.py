"""A wait that follows the fleet: so many devices, over the check-ins a second that the server wants."""

import time

import pytest
from sqlalchemy import insert

from server.settings import Settings
from server.storage.identities import presence as module
from server.storage.schema.tables import devices, tokens
from server.storage.store import Store

TOKEN = {"id": "t", "hash": "", "label": "", "created": 0.0, "expires": 0.0, "uses": 0, "max_uses": 0, "revoked": False}


@pytest.fixture
def settled(tmp_path, monkeypatch):
    """A store with devices that were heard of so many seconds ago; each call is a process of its own."""
    monkeypatch.setattr(module, "_COUNT_EVERY", 0.0)
    opened = []

    def settle(count: int = 0, ago: float = 0.0, **settings) -> Store:
        store = Store(Settings(data_dir=tmp_path, **settings))
        opened.append(store)
        add(store, count, ago)
        return store

    yield settle
    for store in opened:
        store.close()


def add(store: Store, count: int, ago: float = 0.0) -> None:
    seen = store.now() - ago
    row = {"hash": "", "name": "pi", "token": "t", "created": seen, "last_seen": seen, "revoked": False}
    with store.database.write() as connection:
        if not connection.execute(tokens.select()).first():
            connection.execute(insert(tokens).values(**TOKEN))
        if count:
            connection.execute(insert(devices), [row | {"id": f"{seen}-{number}"} for number in range(count)])


def test_a_small_fleet_waits_as_the_setting_says(settled):
    store = settled(50)
    assert store.presence.usual == 30.0
    assert all(15.0 <= store.presence.wait() <= 45.0 for _ in range(100))


def test_a_large_one_waits_until_its_check_ins_are_as_many_as_wanted(settled):
    store = settled(3000, check_ins_per_second=10)
    assert store.presence.usual == 300.0
    assert store.presence.flow == pytest.approx(10.0)
    assert all(150.0 <= store.presence.wait() <= 450.0 for _ in range(100))


def test_every_process_tells_the_same(settled):
    one = settled(3000, check_ins_per_second=10)
    other = settled(check_ins_per_second=10)
    assert one.presence.usual == other.presence.usual == 300.0


def test_who_waits_as_long_as_it_was_told_is_not_away(settled):
    store = settled(3000, check_ins_per_second=10)
    add(store, 1, ago=1.8 * store.presence.usual)
    store.presence.look()
    assert store.presence.count == 3001


def test_a_fleet_that_grows_or_leaves_is_followed(settled, monkeypatch):
    store = settled(10, check_ins_per_second=10)
    assert store.presence.usual == 30.0
    add(store, 6000)
    store.presence.look()
    assert store.presence.usual == pytest.approx(601.0)
    now, steady = store.now, time.monotonic()
    store.now = lambda: now() + 10_000
    monkeypatch.setattr(module.time, "monotonic", lambda: steady + 10_000)
    store.presence.look()
    assert store.presence.usual == 30.0


def test_after_an_outage_the_fleet_is_expected_back(settled):
    """Of devices that nobody heard of for an hour: all lost the same server."""
    store = settled(3000, ago=3600.0, check_ins_per_second=10)
    assert store.presence.usual == 300.0
    store.presence.look()
    assert store.presence.usual == pytest.approx(300.0, rel=0.01)


def test_long_answers_lower_the_rate_and_short_ones_raise_it(settled, monkeypatch):
    presence = settled(3000, check_ins_per_second=10).presence
    seconds = iter(range(100, 200))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(seconds))
    for _ in range(20):
        presence.took(2 * module.LONG_ANSWER)
    assert presence.rate == pytest.approx(2.5)
    for _ in range(20):
        presence.took(0.01)
    assert presence.rate == pytest.approx(10.0)

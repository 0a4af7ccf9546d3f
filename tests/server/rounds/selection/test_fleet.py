"""A round's clients are distinct devices; one that wants more than there are goes on with all of them."""

import numpy as np
import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from server.policy.assignment import Needs, RoundSlot
from server.rounds.selection.fleet import GATHERS
from server.rounds.selection.standing import in_turn
from server.storage.schema.tables import tasks
from tests.server.rounds.test_iterations import SHAPE, scalars, send
from tests.server.rounds.test_rounds import AVERAGE, play

WAITS = GATHERS * 30 + 1
"""Seconds after which nobody else is expected to join, by the default retry time."""


def later(server, seconds):
    server.store.now = lambda now=server.store.now: now() + seconds


def memory_of_none(needs: Needs) -> int:
    """Return the memory of a device that can go back through no block."""
    fit = needs.fit(RoundSlot(0, ()), ["onnx"], None)
    while fit.training.exact_blocks:
        fit = needs.fit(RoundSlot(0, ()), ["onnx"], fit.needs - 1)
    return fit.needs


def here(server, devices, **values):
    """The devices check in again, and what they said is written down."""
    answers = [device.check_in(**values) for device in devices]
    server.http.app.state.services.offers.save_profiles()
    return answers


def test_a_device_takes_one_place_of_a_round(server, bundle_name):
    server.create_job(bundle_name, per_round=10)
    server.advance()
    alone = server.device()
    task = alone.task()
    alone.send(task, alone.update(task))
    server.advance()
    for _ in range(3):
        answer = alone.check_in()
        assert answer["task"] is None
        assert "this device has done its part of round 1 of job; the next opens when 10" in answer["reason"]
    assert server.job()["progress"]["reported"] == 1


def test_the_database_refuses_a_second_place(server, bundle_name):
    """However many workers hand places out."""
    server.create_job(bundle_name, per_round=10)
    server.advance()
    device = server.device()
    task = device.task()
    device.send(task, device.update(task))
    with server.store.database.read() as connection:
        row = dict(connection.execute(select(tasks)).mappings().one())
    again = row | {"id": "again", "slot": row["slot"] + 1, "state": "open"}
    with pytest.raises(IntegrityError), server.store.database.write() as connection:
        connection.execute(insert(tasks).values(again))


def test_a_round_goes_on_with_all_that_there_are(server, bundle_name):
    server.create_job(bundle_name, per_round=10, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(3)]
    play(server, devices, [0.1, 0.2, 0.3])
    assert server.job()["version"] == 0  # others may be about to join
    later(server, WAITS)
    here(server, devices)
    server.advance()
    job = server.job()
    assert (job["version"], job["metrics"]["reports"]) == (1, 3)
    play(server, devices, [0.1, 0.1, 0.1])
    assert server.job()["version"] == 2  # as many as before have reported: no longer than they take


def test_a_device_that_can_still_join_is_waited_for(server, bundle_name):
    server.create_job(bundle_name, per_round=10)
    server.advance()
    first = server.device()
    play(server, [first], [0.1])
    later(server, WAITS)
    here(server, [first])
    late = server.device()  # enrolled a moment ago, and has not asked yet
    server.advance()
    assert server.job()["version"] == 0
    play(server, [late], [0.1])
    assert server.job()["version"] == 1
    assert first.task()["round"] == 2


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"mains_only": True}, {"power": "battery"}),
        ({"unmetered_only": True}, {"metered": True}),
        ({}, {"runtimes": ["executorch"]}),
        ({}, {"memory_bytes": 1000}),
        ({}, {"job": "another"}),
    ],
)
def test_a_device_that_cannot_join_is_not(server, bundle_name, settings, values):
    server.create_job(bundle_name, per_round=10, **settings)
    server.advance()
    able, unable = server.device(), server.device()
    play(server, [able], [0.1])
    later(server, WAITS)
    here(server, [unable], **values)
    server.advance()
    assert server.job()["version"] == 1


def test_a_revoked_device_is_not_waited_for(server, bundle_name):
    server.create_job(bundle_name, per_round=10)
    server.advance()
    able, revoked = server.device(), server.device()
    play(server, [able], [0.1])
    later(server, WAITS)
    here(server, [revoked], runtimes=["executorch"])
    server.call("DELETE", f"/v1/devices/{revoked.id}", 204)
    server.advance()
    assert server.job()["version"] == 1


def test_who_trains_is_waited_for(server, bundle_name):
    server.create_job(bundle_name, per_round=10)
    server.advance()
    quick, slow = server.device(), server.device()
    task = slow.task()
    play(server, [quick], [0.1])
    later(server, 5 * WAITS)
    server.advance()
    assert server.job()["version"] == 0
    slow.send(task, slow.update(task))
    server.advance()
    assert server.job()["metrics"]["reports"] == 2


def test_half_of_the_devices_there_are_is_enough_at_the_deadline(server, bundle_name):
    server.create_job(bundle_name, per_round=10, deadline=100)
    server.advance()
    devices = [server.device() for _ in range(3)]
    tasks_ = [device.task() for device in devices]
    for device, task in zip(devices[:2], tasks_[:2], strict=True):
        device.send(task, device.update(task))
    later(server, 101)
    server.advance()
    assert server.job()["metrics"]["reports"] == 2


def test_what_a_job_asks_for_at_least_stands(server, bundle_name):
    server.create_job(bundle_name, per_round=10, minimum=4, deadline=100)
    server.advance()
    devices = [server.device() for _ in range(3)]
    play(server, devices, [0.1, 0.1, 0.1])
    assert "it fails with fewer than 4" in server.job()["progress"]["lacks"]
    later(server, 101)
    server.advance()
    assert server.job()["version"] == 0
    assert "3 of at least 4" in server.call("GET", "/v1/jobs/job/rounds").json()[-1]["result"]["reason"]


def test_the_first_iteration_goes_on_with_all_that_there_are(server, bundle_name):
    training = {"mode": "iteration", "iterations": 2, **SHAPE}
    server.create_job(bundle_name, training=training, per_round=10)
    server.advance()
    devices, rng = [server.device() for _ in range(2)], np.random.default_rng(0)
    given = [device.task() for device in devices]
    for device, task in zip(devices, given, strict=True):
        send(device, task, 0, scalars(rng))
        server.advance()
    assert server.job()["version"] == 0
    later(server, WAITS)
    here(server, devices)
    server.advance()
    assert server.job()["version"] == 1
    for device, task in zip(devices, given, strict=True):
        send(device, task, 1, scalars(rng))
    server.advance()
    assert server.job()["done"] == 1


def test_a_job_says_what_its_round_lacks(server, bundle_name):
    server.create_job(bundle_name, per_round=10)
    server.advance()
    assert "no enrolled device is suitable and here" in server.job()["progress"]["lacks"]
    later(server, 3)
    for _ in range(3):
        server.device().task()
    said = server.job()["progress"]["lacks"]
    assert said.startswith("round 1 wants 10 clients, 3 devices are enrolled, suitable and here")
    assert said.endswith("enrol more, or make a job with per_round=3")
    later(server, 3)
    for _ in range(7):
        server.device().task()
    assert server.job()["progress"]["lacks"] is None


def test_few_devices_take_turns_at_the_units(server, bundle_name):
    """Otherwise the first places alone would have holders, and the other units never move."""
    server.create_job(bundle_name, per_round=10, over_selection=1, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(2)]
    units = len(server.store.bundles.manifest(bundle_name).units)
    held = set()
    for _ in range(6):
        given = play(server, devices, [0.1, 0.1])
        held |= {unit for task in given for unit in task["units"]}
        later(server, WAITS)
        here(server, devices)
        server.advance()
    assert held == set(range(units))


def test_of_few_devices_as_many_measure_in_each_round(server, bundle_name):
    """Four devices fill four of ten slots: three of these four measure, whichever the slots are."""
    server.create_job(bundle_name, per_round=10, over_selection=1, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(4)]
    asked = []
    for _ in range(6):
        asked.append(sum(task["measure"] for task in play(server, devices, [0.1] * 4)))
        later(server, WAITS)
        here(server, devices)
        server.advance()
    assert asked == [4, 3, 3, 3, 3, 3]


def test_turns_cover_all_places():
    assert in_turn(7, 10, 10) == in_turn(7, 0, 10) == frozenset()
    assert [sorted(in_turn(number, 3, 10)) for number in (1, 2, 3, 4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 9]]

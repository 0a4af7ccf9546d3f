"""Schedule buffered: updates count in the round in which they come, less of them the older their weights."""

import json

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load

from server.jobs.settings import JobSettings
from server.policy.assignment import RoundSlot
from server.rounds.outcome import late
from server.rounds.rounds import advance
from server.storage.jobs import find_job
from server.strategy.staleness import share

AVERAGE = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
PLAIN = {"schedule": "buffered", "optimizers": AVERAGE, "assignment": "all", "measure_features": False}


def begin(server, bundle_name, devices, **settings):
    server.create_job(bundle_name, **PLAIN | settings)
    server.advance()
    return [server.device(f"device-{number}") for number in range(devices)]


def rounds_of(server):
    return list(reversed(server.call("GET", "/v1/jobs/job/rounds").json()))


def weights_of(device):
    return load(device.call("GET", "/v1/jobs/job/weights", params={"since": -1}).content)


def newest(server):
    job = find_job(server.store, "job")
    return server.store.models.load(job, job.version).weights


def moved(start, change):
    return {name: value + np.float32(change) for name, value in start.items()}


def sent(device, task, tensors, status=200, examples=8):
    from safetensors.numpy import save

    report = json.dumps({"examples": examples, "steps": examples, "loss": 1.0})
    return device.send(task, save(tensors, {"report": report}), status)


def test_an_update_counts_for_the_present_weights_by_how_old_it_is(server, bundle_name):
    """Against numbers worked out here: the mean of differences, each shrunk by the root of 1 + staleness."""
    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1, rounds=10)
    first = newest(server)
    slow_task, slow_start = slow.task(), weights_of(slow)
    wanted = dict(first)
    rng = np.random.default_rng(5)
    for _ in range(3):
        task = fast.task()
        change = float(rng.normal())
        sent(fast, task, moved(weights_of(fast), change))
        server.advance()
        wanted = moved(wanted, change)
    own = {name: rng.normal(0, 0.1, value.shape).astype(np.float32) for name, value in slow_start.items()}
    sent(slow, slow_task, {name: slow_start[name] + own[name] for name in own})
    server.advance()
    for name, value in newest(server).items():
        np.testing.assert_allclose(value, wanted[name] + own[name] / np.sqrt(1 + 3), atol=1e-5)
    last = rounds_of(server)[3]
    assert last["result"]["stale"] == {"3": 1}
    assert last["result"]["staleness"] == 3
    assert last["tasks"] == {"accepted": 1}
    assert server.job()["metrics"]["staleness"] == 3


def test_a_buffer_weighs_updates_by_examples(server, bundle_name):
    one, two, other = begin(server, bundle_name, 3, per_round=3, buffer=2, weight_bound=100)
    tasks = [one.task(), two.task()]
    start, waiting = newest(server), other.task()
    sent(one, tasks[0], moved(start, 0.1), examples=2)
    server.advance()
    assert server.job()["version"] == 0
    sent(two, tasks[1], moved(start, 0.4), examples=6)
    server.advance()
    for name, value in newest(server).items():
        np.testing.assert_allclose(value, start[name] + (0.1 * 2 + 0.4 * 6) / 8, atol=1e-5)
    assert server.job()["progress"]["training"] == 1, "the third goes on in the next round"
    assert waiting["version"] == 0


def test_a_device_gets_the_weights_that_its_task_begins_with(server, bundle_name):
    """However far the job has gone since; what it lacks of them is enough."""
    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1)
    start = newest(server)
    slow_task = slow.task()
    for _ in range(2):
        task = fast.task()
        sent(fast, task, moved(weights_of(fast), 0.5))
        server.advance()
    answer = slow.call("GET", "/v1/jobs/job/weights", params={"since": -1})
    assert answer.headers["X-Spry-Version"] == "0"
    for name, value in load(answer.content).items():
        np.testing.assert_array_equal(value, start[name])
    slow.call("GET", "/v1/jobs/job/weights", 204, params={"since": 0})
    again = slow.task()
    assert again["seconds"] < slow_task["seconds"]
    assert again == slow_task | {"round": 3, "seconds": again["seconds"]}, "after a restart it is the same task"
    sent(slow, slow_task, moved(start, 0.0))
    server.advance()
    assert slow.task()["version"] == 3
    assert slow.call("GET", "/v1/jobs/job/weights", params={"since": 0}).headers["X-Spry-Version"] == "3"


def test_beyond_the_bound_a_task_ends_and_its_device_gets_a_fresh_one(server, bundle_name):
    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1, max_staleness=1)
    start, stale = newest(server), slow.task()
    for _ in range(2):
        task = fast.task()
        sent(fast, task, moved(weights_of(fast), 0.5))
        server.advance()
    refused = sent(slow, stale, moved(start, 0.1), 409)
    assert refused["code"] == "late"
    assert "more than 1 versions old (max_staleness)" in refused["detail"]
    fresh = slow.task()
    assert (fresh["id"] != stale["id"], fresh["version"]) == (True, 2)
    assert server.job()["version"] == 2


def test_a_task_has_a_time_of_its_own(server, bundle_name):
    """A round that others complete leaves it alone; a device that is gone gives its place up, and comes last."""
    fast, gone, other = begin(server, bundle_name, 3, per_round=2, buffer=1, deadline=100)
    clock = server.store.now
    lost = gone.task()
    start = newest(server)
    for passed in (0, 50, 90):
        server.store.now = lambda passed=passed: clock() + passed
        sent(fast, fast.task(), moved(weights_of(fast), 0.1))
        server.advance()
    assert "no free slot" in other.check_in()["reason"] or other.task()
    server.store.now = lambda: clock() + 101
    server.advance()
    refused = sent(gone, lost, moved(start, 0.1), 409)
    assert "it took longer than the 100 s of the job's deadline" in refused["detail"]
    assert "expired in a row" in gone.check_in()["reason"]


def test_no_more_devices_than_asked_for_are_at_work(server, bundle_name):
    devices = begin(server, bundle_name, 4, per_round=2, buffer=1)
    first, second = devices[0].task(), devices[1].task()
    assert "no free slot" in devices[2].check_in()["reason"]
    sent(devices[0], first, moved(newest(server), 0.1))
    assert devices[2].check_in()["task"], "the buffer holds no place of those at work"
    assert "no free slot" in devices[3].check_in()["reason"]
    server.advance()
    assert "no free slot" in devices[0].check_in()["reason"]
    assert devices[1].task()["id"] == second["id"]


def test_a_device_counts_once_in_a_round(server, bundle_name):
    fast, _ = begin(server, bundle_name, 2, per_round=2, buffer=2)
    sent(fast, fast.task(), moved(newest(server), 0.1))
    answer = fast.check_in()
    assert answer["task"] is None
    assert "has done its part of round 1" in answer["reason"]
    assert "when 2 have reported" in answer["reason"]


def test_an_update_that_comes_while_a_round_is_closed_waits_for_the_next(server, bundle_name):
    """It is told to come again, not refused, and counts as nothing that was refused."""
    from server.rounds import claims
    from server.storage.work import rounds

    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1)
    start, slow_task = newest(server), slow.task()
    sent(fast, fast.task(), moved(start, 0.1))
    with server.store.database.read() as connection:
        open_round = rounds.newest(connection, find_job(server.store, "job").id)
    assert claims.claim(server.store, open_round) is not None
    refused = slow.call("PUT", f"/v1/tasks/{slow_task['id']}/update", 503, content=b"never read")
    assert refused.headers["Retry-After"] == "1"
    assert "being closed" in refused.json()["detail"]
    server.store.now = lambda now=server.store.now: now() + claims.LEASE + 1
    server.advance()
    sent(slow, slow_task, moved(start, 0.1))
    server.advance()
    job = server.job()
    assert (job["version"], job["refused"]) == (2, {})


def test_a_paused_job_takes_what_was_asked_for(server, bundle_name):
    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1)
    start, tasks = newest(server), [fast.task(), slow.task()]
    server.call("POST", "/v1/jobs/job/pause")
    for device, task in zip((fast, slow), tasks, strict=True):
        sent(device, task, moved(start, 0.1))
        server.advance()
    assert server.job()["version"] == 2
    assert fast.check_in()["reason"] == "job is paused"


def test_the_end_of_a_job_ends_what_is_open(server, bundle_name):
    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1, rounds=1)
    start, stale = newest(server), slow.task()
    sent(fast, fast.task(), moved(start, 0.1))
    server.advance()
    assert server.job()["state"] == "ended"
    assert "1 rounds are done" in sent(slow, stale, moved(start, 0.1), 409)["detail"]


def test_fewer_devices_than_a_buffer_go_on_with_all_of_them(server, bundle_name):
    one, two = begin(server, bundle_name, 2, per_round=6, buffer=5)
    tasks = [one.task(), two.task()]
    for device, task in zip((one, two), tasks, strict=True):
        sent(device, task, moved(newest(server), 0.1))
    server.store.now = lambda now=server.store.now: now() + 2.1 * server.store.settings.retry_seconds
    server.advance()
    assert server.job()["version"] == 1


def test_a_round_whose_time_is_up_takes_what_there_is(server, bundle_name):
    """It does not fail: nothing that was accepted is lost; with nothing it waits."""
    one, two = begin(server, bundle_name, 2, per_round=4, buffer=3, deadline=100)
    clock, tasks = server.store.now, [one.task(), two.task()]
    sent(one, tasks[0], moved(newest(server), 0.1))
    server.store.now = lambda: clock() + 99
    server.advance()
    assert server.job()["version"] == 0
    server.store.now = lambda: clock() + 101
    server.advance()
    assert server.job()["version"] == 1
    assert [round_["state"] for round_ in rounds_of(server)] == ["done", "open"]


def test_an_outlier_is_judged_by_its_own_start(server, bundle_name):
    """Of a late update it is the difference from the weights it began with that must not go too far."""
    devices = begin(server, bundle_name, 4, per_round=4, buffer=3, norm_bound=3)
    start, slow_task = newest(server), devices[3].task()
    for device in devices[:3]:
        sent(device, device.task(), moved(start, 1.0))
    server.advance()
    now = newest(server)
    tasks = [device.task() for device in devices[:2]]
    for device, task in zip(devices[:2], tasks, strict=True):
        sent(device, task, moved(now, 1.0))
    sent(devices[3], slow_task, moved(start, 8.0))
    server.advance()
    result = rounds_of(server)[1]["result"]
    assert (result["reports"], result["refused"], result["stale"]) == (2, 1, {"0": 2})


@pytest.mark.parametrize("rule", ["clipped", "trimmed", "median"])
def test_a_robust_mean_sees_late_updates_as_they_count(server, bundle_name, rule):
    """Three equal changes, one of them late by one version: what any rule makes of them lies between."""
    devices = begin(server, bundle_name, 4, per_round=4, buffer=3, aggregation=rule)
    start, slow_task = newest(server), devices[3].task()
    for device in devices[:3]:
        sent(device, device.task(), moved(start, 0.1))
    server.advance()
    now, tasks = newest(server), [device.task() for device in devices[:2]]
    for device, task in zip(devices[:2], tasks, strict=True):
        sent(device, task, moved(now, 0.1))
    sent(devices[3], slow_task, moved(start, 0.1))
    server.advance()
    for name, value in newest(server).items():
        change = value - now[name]
        assert (change > 0.1 / np.sqrt(2) - 1e-6).all()
        assert (change < 0.1 + 1e-6).all()
    assert rounds_of(server)[1]["result"]["stale"] == {"0": 2, "1": 1}


def test_late_devices_are_judged_by_what_they_say_of_the_weights_they_began_with(server, bundle_name):
    """One that turns its changes round is left out and named, late as it is; one that is only late is not."""
    *fast, honest, liar = begin(server, bundle_name, 8, per_round=8, buffer=6, aggregation="agreeing")
    rng = np.random.default_rng()
    start, late_tasks = newest(server), [honest.task(), liar.task()]
    wanted = {name: rng.normal(0, 0.1, value.shape).astype(np.float32) for name, value in start.items()}
    for device in fast:
        sent(device, device.task(), {name: value + wanted[name] for name, value in start.items()})
    server.advance()
    now, tasks = newest(server), [device.task() for device in fast[:4]]
    sent(honest, late_tasks[0], {name: value + wanted[name] for name, value in start.items()})
    sent(liar, late_tasks[1], {name: value - wanted[name] for name, value in start.items()})
    for device, task in zip(fast, tasks, strict=False):
        sent(device, task, {name: value + wanted[name] for name, value in now.items()})
    server.advance()
    for name, value in newest(server).items():
        np.testing.assert_allclose(value - now[name], wanted[name] * (4 + 1 / np.sqrt(2)) / 5, atol=1e-6)
    result = rounds_of(server)[1]["result"]
    assert result["stale"] == {"0": 4, "1": 2}
    ((device, why),) = [(one["device"], one["why"]) for one in result["outlying"]]
    assert device == liar.id
    assert why.startswith("its update goes against the others")


def test_all_units_have_their_turn_though_one_device_keeps_its_place(server, bundle_name):
    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1, assignment="cyclic", rounds=50)
    held = dict.fromkeys(slow.task()["units"], 1)
    for _ in range(8):
        task = fast.task()
        for unit in task["units"]:
            held[unit] = held.get(unit, 0) + 1
        sent(fast, task, load(fast.update(task, 0.01)))
        server.advance()
    units = len(server.store.bundles.manifest(bundle_name).units)
    assert set(held) == set(range(units))
    assert max(held.values()) - min(held.values()) <= 1


def test_a_crash_before_the_next_round_loses_nothing(serving, bundle, database):
    with serving(**database) as server:
        name = server.upload(bundle)
        fast, slow = begin(server, name, 2, per_round=2, buffer=1)
        start, slow_task = newest(server), slow.task()
        sent(fast, fast.task(), moved(start, 0.1))
        job = find_job(server.store, "job").id
        assert advance(server.store, job)  # closes the round; the next is not open yet
        headers = slow.headers
    with serving(**database) as server:
        slow.server = server
        slow.headers = headers
        slow.call("PUT", f"/v1/tasks/{slow_task['id']}/update", 503, content=b"")
        server.advance()
        sent(slow, slow_task, moved(start, 0.1))
        assert sent(slow, slow_task, moved(start, 0.1))["repeated"]
        server.advance()
        assert [round_["tasks"] for round_ in rounds_of(server)][:2] == [{"accepted": 1}, {"accepted": 1}]
        assert server.job()["version"] == 2


def test_people_are_told_with_which_weights_updates_began(server, bundle_name):
    """On the round, and in the job's log; a round that waits for its clients says nothing of it."""
    fast, slow = begin(server, bundle_name, 2, per_round=2, buffer=1)
    start, slow_task = newest(server), slow.task()
    sent(fast, fast.task(), moved(start, 0.1))
    server.advance()
    sent(slow, slow_task, moved(start, 0.1))
    server.advance()
    words = ["of 1 update 1 with the newest weights", "of 1 update 1 with weights 1 version old", ""]
    assert [round_["began"] for round_ in rounds_of(server)] == words
    told = [line["text"] for line in server.call("GET", "/v1/jobs/job/log").json() if line["kind"] == "round"]
    assert sorted(text.rpartition("; ")[2] for text in told) == sorted(words[:2])
    server.create_job(bundle_name, name="waits", per_round=1)
    server.advance()
    task = fast.task(job="waits")
    fast.send(task, fast.update(task))
    server.advance()
    rounds = server.call("GET", "/v1/jobs/waits/rounds").json()
    assert [round_["began"] for round_ in rounds] == ["", ""]
    assert "staleness" not in server.job("waits")["metrics"]


# --- pure ------------------------------------------------------------------------------------------------------------


def test_what_is_left_falls_with_the_root():
    assert [share(staleness) for staleness in (0, 3, 8)] == [1, 1 / 2, 1 / 3]


def test_words_for_many_updates():
    assert late.in_words({}) == ""
    told = late.in_words({"0": 5, "1": 2, "12": 1})
    parts = "5 with the newest weights", "2 with weights 1 version old", "1 with weights 12 versions old"
    assert told == f"of 8 updates {', '.join(parts)}"


def test_places_of_units_given_out_least_come_first():
    free = [RoundSlot(number, ()) for number in (1, 2, 4, 5)]
    assert late.in_turn(free, {}, 3) == {1, 2, 4, 5}
    assert late.in_turn(free, {0: 1, 4: 1}, 3) == {2, 5}
    assert late.in_turn([], {0: 1}, 3) == frozenset()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"buffer": 3}, "buffer is for schedule buffered"),
        ({"schedule": "buffered", "training": {"mode": "iteration"}}, "needs mode epoch"),
        ({"schedule": "buffered", "buffer": 11}, "buffer is 11, more than the per_round 10"),
        ({"schedule": "buffered", "keep": 20}, "above max_staleness"),
        ({"schedule": "buffered", "minimum": 6}, "minimum is 6, more than buffer 3"),
    ],
)
def test_settings_that_cannot_be(settings, problem):
    with pytest.raises(ValidationError, match=problem):
        JobSettings.model_validate(settings)


def test_secure_aggregation_is_refused_in_one_line():
    """Where a version has it."""

    class WithSums(JobSettings):
        secure_aggregation: bool = False

    with pytest.raises(ValidationError, match="secure_aggregation adds up the updates of one round's clients"):
        WithSums.model_validate({"schedule": "buffered", "secure_aggregation": True})
    WithSums.model_validate({"schedule": "buffered"})

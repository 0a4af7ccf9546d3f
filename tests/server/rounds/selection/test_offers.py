"""Which round a device is given a place in, and why it has none."""

import numpy as np
import pytest

from edge_client.wire.protocol import Training
from server.control.devices import assignment
from server.policy.assignment import Needs, RoundSlot
from server.storage.jobs import find_job
from tests.server.rounds.selection.test_fleet import here, later, memory_of_none


def failed(device, task, reason="label 'x' is unknown"):
    device.call("POST", f"/v1/tasks/{task['id']}/failure", json={"reason": reason})


def reason(device, **values):
    answer = device.check_in(**values)
    assert answer["task"] is None
    return answer["reason"]


def test_who_gave_a_task_back_is_told_so(server, bundle_name):
    """Not that no place fits its memory."""
    server.create_job(bundle_name)
    server.advance()
    device = server.device()
    failed(device, device.task())
    told = reason(device, memory_bytes=16_548_000_000)
    assert told == "job lets others come first for 60 s: this device gave its last task back"
    later(server, 61)
    assert device.task(memory_bytes=16_548_000_000)


def test_who_was_refused_is_told_so(server, bundle_name):
    server.create_job(bundle_name)
    server.advance()
    device = server.device()
    device.send(device.task(), b"no update", 422)
    assert reason(device).endswith("this device was refused")


def test_memory_is_the_reason_only_where_it_is(server, bundle_name):
    server.create_job(bundle_name)
    server.advance()
    assert reason(server.device(), memory_bytes=1000) == "job has no free slot that fits 0 MB of memory"


def test_a_device_that_one_program_at_a_time_would_fit_is_told_so(server, bundle_name):
    server.create_job(bundle_name)
    server.advance()
    needs = Needs(server.store.bundles.manifest(bundle_name), Training(batch=2, length=8))
    alone = min(needs.bytes("onnx", cut, 1, Training(batch=2, length=8), low_memory=True) for cut in (1, 2))
    device = server.device()
    told = reason(device, memory_bytes=alone)
    assert told.startswith("job has no free slot that fits")
    assert told.endswith("of memory unless this device joins with --low-memory")
    assert device.task(memory_bytes=alone, low_memory=True)["units"]


def test_a_round_that_closes_is_no_lack_of_jobs(server, bundle_name):
    server.create_job(bundle_name, per_round=1)
    assert reason(server.device()) == "the first round of job opens in a moment"
    server.advance()
    from sqlalchemy import update

    from server.storage.schema.tables import rounds

    with server.store.database.write() as connection:
        connection.execute(update(rounds).values(state="closing"))
    server.store.turn += 1
    told = "round 1 of job is being closed; the next opens in a moment"
    assert reason(server.device()) == reason(server.device(), job="job") == told


def test_a_job_that_does_not_run_says_why(server, bundle_name):
    server.create_job(bundle_name)
    server.advance()
    server.call("POST", "/v1/jobs/job/pause")
    assert reason(server.device()) == "job is paused"
    server.call("POST", "/v1/jobs/job/stop")
    assert reason(server.device(), job="job").startswith("job 'job' is not running: it is ended (stopped")
    assert reason(server.device(), job="else") == "job 'else' is not running: there is none of this name"
    assert reason(server.device()) == "no job is running"


def test_a_task_of_another_job_goes_back(server, bundle_name):
    for name in ("one", "two"):
        server.create_job(bundle_name, name)
    server.advance()
    device = server.device()
    first = device.task(job="one")
    assert device.task(job="two")["job_name"] == "two"
    assert device.send(first, b"late", 409)["code"] == "late"
    assert server.job("one")["progress"]["training"] == 0


def test_devices_of_two_jobs_meet_in_one(server, bundle_name):
    """Each job wants two: one device in each would wait for the deadline."""
    for name in ("one", "two"):
        server.create_job(bundle_name, name, per_round=2)
    server.advance()
    given = [server.device().task()["job_name"] for _ in range(4)]
    assert given == ["one", "one", "two", "two"]


def test_who_has_done_its_part_takes_one_of_another_job(server, bundle_name):
    for name in ("one", "two"):
        server.create_job(bundle_name, name, per_round=3)
    server.advance()
    device = server.device()
    task = device.task()
    device.send(task, device.update(task))
    assert (task["job_name"], device.task()["job_name"]) == ("one", "two")


def test_every_job_gives_its_reason(server, bundle_name):
    server.create_job(bundle_name, "charged", mains_only=True)
    server.create_job(bundle_name, "free", unmetered_only=True)
    server.advance()
    told = reason(server.device(), power="battery", metered=True)
    assert told == "charged takes no devices on battery; free takes no devices on a metered network"


def test_what_a_device_could_not_do_reaches_the_operator(server, bundle_name):
    server.create_job(bundle_name)
    server.advance()
    device = server.device()
    task = device.task()
    for _ in range(2):
        failed(device, task, "the disk is full: free 20 MB")
    assert server.job()["refused"] == {"failed": 1}
    (told,) = server.call("GET", "/v1/jobs/job/refusals").json()
    assert (told["code"], told["detail"], told["device"]) == ("failed", "the disk is full: free 20 MB", device.id)


def test_whose_tasks_expire_comes_last(server, bundle_name):
    """First it waits, twice as long each time, then for others to come first."""
    server.create_job(bundle_name, per_round=1, deadline=10)
    server.advance()
    squatter = server.device("squatter")

    def squat():
        squatter.task()
        later(server, 11)
        server.advance()

    squat()
    assert "for 60 s: 1 task of this device expired in a row" in reason(squatter)
    later(server, 61)
    squat()
    assert "for 120 s: 2 tasks of this device expired in a row" in reason(squatter)
    later(server, 110)
    honest = server.device()
    task = honest.task()
    honest.send(task, honest.update(task))
    server.advance()
    later(server, 20)
    assert reason(squatter) == "this device comes last in round 4 of job: 2 tasks of this device expired in a row"
    later(server, 60)
    task = squatter.task()
    squatter.send(task, squatter.update(task))
    server.advance()
    assert squatter.task()["round"] == 5  # it has made good


def test_a_round_that_was_complete_without_a_device_is_not_its_fault(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=2)
    server.advance()
    quick, slow = server.device(), server.device()
    task, _ = quick.task(), slow.task()
    quick.send(task, quick.update(task))
    server.advance()
    assert slow.task()["round"] == 2


def test_a_round_does_not_wait_for_whose_tasks_expire(server, bundle_name):
    server.create_job(bundle_name, per_round=5, deadline=100)
    server.advance()
    squatter, honest = server.device(), server.device()
    squatter.task()
    task = honest.task()
    honest.send(task, honest.update(task))
    later(server, 101)
    server.advance()
    assert server.job()["version"] == 1
    squatter.check_in()
    server.http.app.state.services.offers.save_profiles()
    task = honest.task()
    honest.send(task, honest.update(task))
    server.advance()
    assert server.job()["version"] == 2


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_token_says_how_many_may_take_part_at_once(server, bundle_name, at_once):
    server.create_job(bundle_name, per_round=10)
    server.advance()
    made = server.call("POST", "/v1/tokens", 201, json={"label": "lab", "uses": 9, "at_once": at_once}).json()
    assert made["at_once"] == at_once
    devices = [server.device(token=made["token"]) for _ in range(at_once + 1)]
    tasks = [device.task() for device in devices[:-1]]
    assert "that enrolled with the token 'lab' may take part at once, and as many do" in reason(devices[-1])
    server.device().task()  # of another token
    devices[0].send(tasks[0], devices[0].update(tasks[0]))
    assert devices[-1].task()


def test_each_device_takes_the_step_that_it_can_hold(server, bundle_name):
    """What a round makes of them is their mean, in which a true gradient weighs more than an estimate."""
    auto = {"estimator": "auto", "batch": 2, "length": 8}
    optimizers = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    shape = {"per_round": 2, "over_selection": 1, "assignment": "all", "optimizers": optimizers}
    server.create_job(bundle_name, training=auto, **shape)
    server.advance()
    manifest = server.store.bundles.manifest(bundle_name)
    needs = Needs(manifest, Training(**auto))
    slot = RoundSlot(0, (0, 1, 2, 3))
    deep = needs.fit(slot, ["onnx"], None)
    fit = deep
    while fit.training.exact_blocks == deep.training.exact_blocks:
        fit = needs.fit(slot, ["onnx"], fit.needs - 1)
    large, small = server.device("large"), server.device("small")
    start = large.weights("job")
    tasks = {device: device.task(memory_bytes=memory) for device, memory in ((large, deep.needs), (small, fit.needs))}
    assert [task["training"]["estimator"] for task in tasks.values()] == ["mixed", "mixed"]
    depths = [task["training"]["exact_blocks"] for task in tasks.values()]
    assert depths == [2, fit.training.exact_blocks]
    found = assignment(server.store, find_job(server.store, "job"))
    assert {part.step for part in found.parts} == {
        "exact through 2 blocks",
        f"exact through {depths[1]} block{'' if depths[1] == 1 else 's'}, forward before",
    }
    for device, change in ((large, 0.1), (small, 0.3)):
        device.send(tasks[device], device.update(tasks[device], change, 8))
    server.advance()
    after = large.weights("job")
    first = manifest.units[0]
    inverse_variance = 1 / (1 + 2 * first.size + 1)  # both units of the block share a derivative
    wanted = (0.1 + 0.3 * inverse_variance) / (1 + inverse_variance)
    np.testing.assert_allclose(after[first.parameters[0].name] - start[first.parameters[0].name], wanted, atol=1e-6)
    head = manifest.head[0].name
    np.testing.assert_allclose(after[head] - start[head], 0.2, atol=1e-6)


def test_who_can_goes_deeper_the_less_others_can(server, bundle_name):
    """Two blocks: for two passes all devices go back through one, or half of them through both."""
    training = {"estimator": "auto", "batch": 2, "length": 8}
    needs = Needs(server.store.bundles.manifest(bundle_name), Training(**training))
    little = memory_of_none(needs)
    memory = {server.device(f"pi {number}"): (None, None, little, little)[number] for number in range(4)}
    for device, size in memory.items():
        here(server, [device], memory_bytes=size)
    server.create_job(bundle_name, training=training, passes=2.0, per_round=4, over_selection=1)
    server.create_job(bundle_name, "alike", training=training, passes=2.0, per_round=4, over_selection=1)
    server.advance()
    tasks = [device.task(memory_bytes=size, job="job") for device, size in memory.items()]
    assert [task["training"]["exact_blocks"] for task in tasks] == [2, 2, 0, 0]
    assert [task["units"] for task in tasks] == [[0, 1, 2, 3], [0, 1, 2, 3], [], []]
    given = assignment(server.store, find_job(server.store, "job"))
    assert {part.step for part in given.parts} == {"exact through 2 blocks", "exact through 0 blocks"}
    for device, task in zip(memory, tasks, strict=True):
        device.send(task, device.update(task))
    server.advance()
    assert server.job()["done"] == 1
    later(server, 11)
    for device in memory:
        here(server, [device], memory_bytes=None, job="nothing")
    tasks = [device.task(job="alike") for device in memory]
    assert [(task["training"]["exact_blocks"], task["units"]) for task in tasks] == [(1, [2, 3])] * 4


def test_a_task_names_the_mirrors_of_its_job_or_else_the_servers(serving, bundle):
    with serving(mirrors=["https://cdn.example.org/bundles/", "http://cache.local"]) as server:
        name = server.upload(bundle)
        server.create_job(name, "one")
        server.create_job(name, "other", mirrors=["https://elsewhere.example.org"])
        server.advance()
        told = {
            task["job_name"]: task["mirrors"] for task in (server.device().task(job=job) for job in ("one", "other"))
        }
    assert told == {
        "one": ["https://cdn.example.org/bundles", "http://cache.local"],
        "other": ["https://elsewhere.example.org"],
    }


@pytest.mark.parametrize("mirrors", ["ftp://a", "https://a?b", "https://user@a", ",".join(["https://a"] * 21), "a"])
def test_what_is_no_mirror_is_refused(server, bundle_name, mirrors):
    body = {"name": "job", "bundle": bundle_name, "settings": {"mirrors": mirrors}}
    refused = server.call("POST", "/v1/jobs", 422, json=body).json()
    assert "is no address" in refused["detail"] or "can be told to devices" in refused["detail"]

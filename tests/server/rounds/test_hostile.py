"""Test what a hostile or broken device sends: refused with the reason, counted, never averaged."""

import json
import struct
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from edge_client.bundle.names import FINGERPRINTS, UNIT_SIZES
from server.storage.identities import refusals
from server.storage.jobs import find_job
from server.storage.work import assignments, rounds
from tests.server.conftest import encode


@pytest.fixture
def job(server, bundle_name):
    return server.create_job(bundle_name, per_round=8, over_selection=1)


@pytest.fixture
def victim(server, job):
    """An honest device, whose update is all that may count."""
    server.advance()
    device = server.device("honest")
    task = device.task()
    device.send(task, device.update(task))
    return device


def changed(device, task, change):
    tensors = load(device.update(task))
    return encode(change(tensors) or tensors)


def put(name, value):
    def change(tensors):
        first = min(tensors) if name == "first" else name
        tensors[first] = value(tensors[first]) if callable(value) else value

    return change


def poke(tensors, value):
    first = min(tensors)
    tensors[first] = tensors[first].copy()
    tensors[first].flat[0] = value


HOSTILE = {
    "not a number": (lambda d, t: changed(d, t, lambda x: poke(x, np.nan)), "not finite"),
    "infinite": (lambda d, t: changed(d, t, lambda x: poke(x, -np.inf)), "not finite"),
    "wrong shape": (lambda d, t: changed(d, t, put("first", lambda v: v.reshape(-1))), "shape"),
    "wrong dtype": (lambda d, t: changed(d, t, put("first", lambda v: v.astype(np.float64))), "dtype F64"),
    "another unit": (lambda d, t: changed(d, t, put("unit.of.somebody", np.zeros(3, np.float32))), "does not train"),
    "a unit missing": (lambda d, t: changed(d, t, lambda x: x.pop(min(x)) is None), "lacks"),
    "no report": (lambda d, t: save(load(d.update(t))), "report"),
    "no examples": (lambda d, t: d.update(t, examples=0), "examples"),
    "endless examples": (lambda d, t: d.update(t, examples=2**60), "examples"),
    "a loss that is no number": (lambda d, t: d.update(t, loss=float("nan")), "report"),
    "truncated": (lambda d, t: d.update(t)[:-5], "not a safetensors file"),
    "a header that lies": (lambda d, t: struct.pack("<Q", 2**62) + d.update(t)[8:], "not a safetensors file"),
    "a pickle": (lambda d, t: b"\x80\x04cposix\nsystem\n(S'touch /tmp/owned'\ntR.", "not a safetensors file"),
    "nothing": (lambda d, t: b"", "not a safetensors file"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_update_is_refused(server, victim, kind):
    device = server.device("hostile")
    before = device.weights("job")
    task = device.task()
    content, reason = HOSTILE[kind]
    problem = device.send(task, content(device, task), 422)
    assert problem["code"] == "invalid"
    assert reason in problem["detail"]
    (counted,) = server.call("GET", "/v1/jobs/job/refusals").json()
    assert (counted["device"], counted["code"], counted["task"]) == (device.id, "invalid", task["id"])
    assert device.send(task, device.update(task), 409)["code"] == "late"  # its place went to another
    assert server.device().task()["units"] == task["units"]
    close_early(server)
    assert server.job()["metrics"]["reports"] == 1
    after = device.weights("job")
    assert all(np.isfinite(value).all() for value in after.values())
    assert any((after[name] != before[name]).any() for name in after)


def close_early(server):
    from sqlalchemy import update

    from server.storage.schema.tables import jobs, rounds

    with server.store.database.write() as connection:
        connection.execute(update(rounds).values(deadline=server.store.now() - 1))
        stored = server.job()["settings"] | {"minimum": 1, "per_round": 8}
        connection.execute(update(jobs).values(settings=stored))
    server.advance()


def test_a_thousand_times_the_norm_is_refused_at_once(server, victim):
    for _ in range(3):
        device = server.device()
        task = device.task()
        device.send(task, device.update(task, 0.1))
    hostile = server.device("hostile")
    task = hostile.task()
    problem = hostile.send(task, hostile.update(task, 100.0), 422)
    assert problem["code"] == "norm"
    assert "1000 times the median" in problem["detail"]
    assert server.job()["refused"] == {"norm": 1}


def test_a_huge_update_is_refused_before_it_is_read(server, victim):
    device = server.device("hostile")
    task = device.task()
    sent = []

    def endless():
        while len(sent) < 10_000:
            sent.append(1)
            yield bytes(1 << 16)

    assert device.call("PUT", f"/v1/tasks/{task['id']}/update", 413, content=endless()).json()["code"] == "too-large"
    assert not list(server.store.blobs.folder.glob(".partial-*"))
    assert server.job()["refused"] == {"too-large": 1}


def test_a_huge_json_message_is_refused(server, bundle_name):
    device = server.device()
    for content in (b" " * (2 << 20), iter([b" " * (1 << 19)] * 4)):
        problem = device.call("POST", "/v1/check-in", 413, content=content).json()
        assert problem["code"] == "too-large"


def test_another_devices_task_is_out_of_reach(server, victim):
    owner, thief = server.device("owner"), server.device("thief")
    task = owner.task()
    content = owner.update(task)
    for method, path, options in (
        ("PUT", "update", {"content": content}),
        ("PUT", "jvps/0", {"content": b"x" * 50}),
        ("POST", "failure", {"json": {"reason": "mine now"}}),
    ):
        problem = thief.call(method, f"/v1/tasks/{task['id']}/{path}", 403, **options).json()
        assert problem["code"] == "foreign"
    assert server.job()["refused"] == {"foreign": 3}
    owner.send(task, content)


def test_a_replay_of_an_old_round_is_refused(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    task = device.task()
    content = device.update(task)
    device.send(task, content)
    server.advance()
    before = device.weights("job")
    assert device.send(task, content)["repeated"]  # harmless: it is the same update
    assert device.send(task, device.update(task, 0.5), 409)["code"] == "late"
    new = device.task()
    assert device.send(new, b"old", 422)["code"] == "invalid"
    server.advance()
    for name, value in device.weights("job").items():
        np.testing.assert_array_equal(value, before[name])


def test_a_revoked_device_is_out(server, job):
    server.advance()
    device = server.device()
    task = device.task()
    content = device.update(task)
    server.call("DELETE", f"/v1/devices/{device.id}", 204)
    for method, path in (("PUT", f"/v1/tasks/{task['id']}/update"), ("GET", "/v1/jobs/job/weights")):
        problem = device.call(method, path, 401, content=content).json()
        assert problem["code"] == "unauthorized"
        assert "revoked" in problem["detail"]
    assert server.job()["progress"]["reported"] == 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), keep=st.integers(0, 200))
def test_bytes_never_break_the_server(server, bundle_name, data, keep):
    """Whatever comes, the answer is a refusal or a receipt."""
    if not server.call("GET", "/v1/jobs").json():
        server.create_job(bundle_name, per_round=1000)
        server.advance()
    device = server.device()
    task = device.task()
    content = device.update(task)
    response = server.http.put(
        f"/v1/tasks/{task['id']}/update", headers=device.headers, content=content[:keep] + data + content[keep:]
    )
    assert response.status_code in (200, 413, 422)
    if response.status_code != 200:
        assert json.loads(response.text)["detail"]


def test_weights_that_are_not_finite_are_never_published(server, bundle_name):
    """The first update of a job has no others to be compared with; its square is beyond 32 bits."""
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    before, task = device.weights("job"), device.task()
    device.send(task, device.update(task, 1e25))
    server.advance()
    assert server.job()["version"] == 0
    failed = server.call("GET", "/v1/jobs/job/rounds").json()[-1]
    assert failed["result"]["reason"] == "its weights would not be finite: lower the learning rate"
    for name, value in device.weights("job").items():
        np.testing.assert_array_equal(value, before[name])


RULES = ["agreeing", "clipped", "trimmed", "median"]


def lying(server, rule, **settings):
    """Ten devices of which three send minus five times what the others found; how far the head went."""
    server.create_job(server.bundle, per_round=10, over_selection=1, aggregation=rule, optimizers=AS_IT_IS, **settings)
    server.advance()
    devices = [server.device(f"board-{number}") for number in range(10)]
    before = devices[0].weights("job")
    tasks = [device.task() for device in devices]
    for number, (device, task) in enumerate(zip(devices, tasks, strict=True)):
        device.send(task, device.update(task, -0.5 if number > 6 else 0.1))
    server.advance()
    after = devices[0].weights("job")
    head = [one.name for one in server.store.bundles.manifest(server.bundle).head]
    return devices, float(np.mean([np.mean(after[name] - before[name]) for name in head]))


AS_IT_IS = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
MEAN = ((7 * 0.1 - 3 * 0.5) / 10 + (7 * 0.1 - 3 * 2 * 0.1) / 10) / 2
"""The mean move of the head's weight and of its bias, which no device moves further than twice the median one."""


@pytest.mark.parametrize(
    ("rule", "moved"), [("mean", MEAN), ("agreeing", 0.1), ("clipped", 0.1), ("trimmed", 0.1), ("median", 0.1)]
)
def test_three_malicious_devices_of_ten(server, bundle_name, rule, moved):
    server.bundle = bundle_name
    _, found = lying(server, rule)
    assert found == pytest.approx(moved, abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_an_operator_is_told_who_lies(server, bundle_name, rule, caplog):
    server.bundle = bundle_name
    devices, _ = lying(server, rule)
    result = server.call("GET", "/v1/jobs/job/rounds").json()[-1]["result"]
    assert [(one["device"], one["name"]) for one in result["outlying"]] == [
        (device.id, f"board-{number}") for number, device in enumerate(devices) if number > 6
    ]
    far = "its head goes 5.0 times as far as is usual and against the others"
    told = {"its update goes against the others' in all of its rounds", far} if rule == "agreeing" else {far}
    whys = [one["why"] for one in result["outlying"]]
    assert all(any(why.startswith(words) for words in told) for why in whys)
    assert all(any(why.startswith(words) for why in whys) for words in told)
    assert server.job()["metrics"]["outliers"] == 3
    assert f"job job: round 1: an outlier, {devices[9].id} (board-9): {whys[2]}" in caplog.text


def test_an_operator_is_told_who_told_the_truth_and_lies_now(server, bundle_name):
    server.create_job(bundle_name, per_round=5, over_selection=1, aggregation="agreeing", optimizers=AS_IT_IS)
    devices = [server.device(f"board-{number}") for number in range(5)]
    for last in (0.1, -0.1):
        server.advance()
        tasks = [device.task() for device in devices]
        for device, task, change in zip(devices, tasks, (0.1, 0.1, 0.1, 0.1, last), strict=True):
            device.send(task, device.update(task, change))
        server.advance()
    rounds_of_job = server.call("GET", "/v1/jobs/job/rounds").json()  # the newest comes first
    second, first = (row["result"].get("outlying", []) for row in rounds_of_job[-2:])
    assert not first
    assert [one["name"] for one in second] == ["board-4"]
    assert second[0]["why"].startswith("its update goes against its own in earlier rounds (cosine -1.00)")


def test_the_mean_tells_of_nobody(server, bundle_name):
    server.bundle = bundle_name
    lying(server, "mean")
    result = server.call("GET", "/v1/jobs/job/rounds").json()[-1]["result"]
    assert not {"outlying", "outliers"} & result.keys()


@pytest.mark.parametrize("rule", RULES)
def test_who_says_it_has_more_examples_weighs_no_more(server, bundle_name, rule):
    """The plain mean believes four times the median's."""
    server.create_job(bundle_name, per_round=3, over_selection=1, aggregation=rule, optimizers=AS_IT_IS)
    server.advance()
    devices = [server.device() for _ in range(3)]
    before = devices[0].weights("job")
    tasks = [device.task(examples=2000) for device in devices]
    for device, task, change, examples in zip(devices, tasks, (0.1, 0.1, -0.1), (8, 8, 2000), strict=True):
        device.send(task, device.update(task, change, examples))
    server.advance()
    head = server.store.bundles.manifest(bundle_name).head[0].name
    assert (devices[0].weights("job")[head] - before[head]).mean() > 0.03


def of_versions(state):
    """Return what devices said by the version at which they did: each server gives them other names."""
    return {
        f"{FINGERPRINTS}{own[-1]:.0f}" if name.startswith(FINGERPRINTS) else name: own for name, own in state.items()
    }


@pytest.mark.parametrize("rule", RULES)
def test_a_restarted_server_goes_on_by_the_same_sizes(serving, bundle, tmp_path, rule):
    """What is usual in a unit is a part of the model's state: a unit with one holder is held to it."""

    def play(folder, restarts):
        changes = [0.1, 0.1, 0.1, -0.5]
        found, server, at = {}, None, ExitStack()
        for number, change in enumerate(changes):
            if server is None or restarts:
                at.close()
                server = at.enter_context(serving(folder))
            if number == 0:
                settings = {"per_round": 1, "over_selection": 1, "units_per_client": 0, "seed": 1}
                server.create_job(server.upload(bundle), aggregation=rule, norm_bound=20, **settings)
            server.advance()
            device = server.device()
            task = device.task()
            device.send(task, device.update(task, change))
            server.advance()
            found = device.weights("job")
        with at:
            return found, of_versions(server.store.models.load(find_job(server.store, "job"), len(changes)).arrays())

    one, state = play(tmp_path / "one", restarts=False)
    other, again = play(tmp_path / "other", restarts=True)
    judged = rule == "agreeing"  # what the last one did is no size of its unit
    assert {len(sizes) for name, sizes in state.items() if name.startswith(UNIT_SIZES)} == {3 if judged else 4}
    assert sum(name.startswith(FINGERPRINTS) for name in state) == (4 if judged else 0)
    for found, expected in ((other, one), (again, state)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_a_device_that_is_refused_again_and_again_waits_and_fills_no_database(server, victim):
    """Updates of another's task: so many in a minute are written down, and of all that are refused the newest."""
    device, job = server.device("late"), find_job(server.store, "job")
    with server.store.database.read() as connection:
        (assignment,) = [one.assignment for one in assignments.accepted(connection, rounds.find(connection, job.id, 1))]
    for _ in range(refusals.A_MINUTE):
        device.call("PUT", f"/v1/tasks/{assignment.id}/update", 403, content=b"x")
    refused = device.call("PUT", f"/v1/tasks/{assignment.id}/update", 429, content=b"x")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    with server.store.database.write() as connection:
        assert refusals.wait_of(connection, victim.id, server.store.now()) is None
        for number in range(2 * refusals.MOST_KEPT):
            refusals.add(connection, assignment, device.id, "late", "too late", server.store.now() + 3600 + number)
        kept = refusals.newest_first(connection, job.id, 10 * refusals.MOST_KEPT)
        assert sum(one.device == device.id for one in kept) == refusals.MOST_KEPT
        counted = refusals.count_by_code(connection, job.id)
    assert (counted["foreign"], counted["late"]) == (refusals.A_MINUTE, 2 * refusals.MOST_KEPT)

"""Mode iteration: scalars up, records down, the same weights on both sides."""

import numpy as np
import pytest
from safetensors.numpy import load

from edge_client.training.replay import replay
from edge_client.wire.protocol import SAFETENSORS, STEPS, ServerOptimizers, Training
from edge_client.wire.scalars import ScalarReport, decode_records, encode_report
from server.storage.work import assignments
from server.storage.work import scalars as stored

SHAPE = {"batch": 2, "length": 8}


@pytest.fixture
def job(server, bundle_name):
    training = {"mode": "iteration", "iterations": 3, **SHAPE}
    made = server.create_job(bundle_name, training=training, per_round=2, over_selection=1)
    server.advance()
    return made


def scalars(rng, training=SHAPE, examples=2):
    values = rng.normal(size=(2, 1, training["batch"])).astype(np.float32)
    return ScalarReport(0.7, examples, values[0], values[1])


def send(device, task, iteration, report, status=200):
    content = report if isinstance(report, bytes) else encode_report(report)
    return device.call("PUT", f"/v1/tasks/{task['id']}/jvps/{iteration}", status, content=content).json()


def steps(device, since, status=200, **parameters):
    return device.call("GET", "/v1/jobs/job/steps", status, params={"since": since, **parameters})


def play(server, devices, tasks, rng, iterations=3):
    for iteration in range(iterations):
        for device, task in zip(devices, tasks, strict=True):
            send(device, task, iteration, scalars(rng))
        server.advance()


def test_clients_repeat_the_servers_steps(server, bundle_name, job):
    devices = [server.device() for _ in range(2)]
    tasks = [device.task() for device in devices]
    weights, state = devices[0].weights("job"), {}
    manifest = server.store.bundles.manifest(bundle_name)
    training, optimizers = Training(mode="iteration", iterations=3, head="apart", **SHAPE), ServerOptimizers()
    rng = np.random.default_rng()
    version = 0
    for iteration in range(3):
        for device, task in zip(devices, tasks, strict=True):
            assert len(encode_report(scalars(rng))) <= 100
            send(device, task, iteration, scalars(rng))
        server.advance()
        response = steps(devices[0], version)
        assert response.headers["content-type"] == STEPS
        assert len(response.content) <= 200 + 64 * len(devices)
        (record,) = decode_records(response.content)
        assert (record.version, record.round, record.iteration) == (version + 1, 1, iteration)
        assert [p.seed for p in record.participants] == [task["seed"] for task in tasks]
        replay(record, weights, state, manifest, training, optimizers)
        version = record.version
    found = load(devices[0].call("GET", "/v1/jobs/job/weights").content)
    for name, value in {**weights, **state}.items():
        np.testing.assert_array_equal(found[name], value)
    view = server.job()
    assert (view["version"], view["done"], view["progress"]["number"]) == (3, 1, 2)
    assert view["metrics"]["loss"] == pytest.approx(0.7)
    rounds = server.call("GET", "/v1/jobs/job/rounds").json()
    assert rounds[-1]["tasks"] == {"accepted": 2}


def test_a_restarted_server_repeats_its_own_records(serving, bundle, tmp_path):
    """Killed between checkpoints: the log is the truth."""
    with serving() as server:
        training = {"mode": "iteration", "iterations": 5, **SHAPE}
        server.create_job(server.upload(bundle), training=training, per_round=1, over_selection=1)
        server.advance()
        device = server.device()
        task = device.task()
        play(server, [device], [task], np.random.default_rng(), 3)
        before = device.weights("job")
        headers = device.headers
    with serving() as server:
        response = server.call("GET", "/v1/jobs/job/weights", headers=headers)
        for name, value in load(response.content).items():
            np.testing.assert_array_equal(value, before[name])
        assert server.job()["progress"]["iteration"] == 3


def test_a_client_far_behind_gets_the_weights_instead(server, bundle_name, job):
    devices = [server.device() for _ in range(2)]
    size = sum(value.nbytes for value in devices[0].weights("job").values())
    rounds = 0
    while sum(map(len, server.store.models.record_bytes(job_of(server), 0))) < 8 * size:
        tasks = [device.task() for device in devices]
        play(server, devices, tasks, np.random.default_rng())
        rounds += 1
        if rounds > 40:
            break
    response = steps(devices[0], 0)
    assert response.headers["content-type"] == SAFETENSORS
    assert steps(devices[0], server.job()["version"] - 1).headers["content-type"] == STEPS


def job_of(server):
    from server.storage.jobs import find_job

    return find_job(server.store, "job")


def test_a_client_that_is_in_step_waits(server, job):
    assert steps(server.device(), 0, 204, wait=0.1).content == b""


def test_whoever_falls_silent_is_not_waited_for_twice(server, bundle_name, job):
    here, gone = server.device(), server.device()
    tasks = [here.task(), gone.task()]
    rng = np.random.default_rng()
    for device, task in zip((here, gone), tasks, strict=True):
        send(device, task, 0, scalars(rng))
    server.advance()
    send(here, tasks[0], 1, scalars(rng))
    server.advance()
    assert server.job()["version"] == 1  # the other one is waited for
    server.store.now = lambda now=server.store.now: now() + 61
    server.advance()
    assert server.job()["version"] == 2
    problem = send(gone, tasks[1], 1, scalars(rng), 409)
    assert problem["code"] == "stale"
    assert "2 is" in problem["detail"]
    send(here, tasks[0], 2, scalars(rng))
    server.advance()
    assert server.job()["done"] == 1


@pytest.mark.parametrize("ending", ["gives it back", "is refused"])
def test_whoever_lost_its_part_is_not_waited_for_at_all(server, job, ending):
    """An iteration's whole time would be lost, at each step in which it happens."""
    here, gone = server.device(), server.device()
    tasks = [here.task(), gone.task()]
    rng = np.random.default_rng()
    for device, task in zip((here, gone), tasks, strict=True):
        send(device, task, 0, scalars(rng))
    server.advance()
    send(here, tasks[0], 1, scalars(rng))
    if ending == "is refused":
        send(gone, tasks[1], 1, b"nonsense", 422)
    else:
        gone.call("POST", f"/v1/tasks/{tasks[1]['id']}/failure", json={"reason": "a loss that is not finite"})
    server.advance()
    assert server.job()["version"] == 2
    send(here, tasks[0], 2, scalars(rng))
    server.advance()
    assert server.job()["done"] == 1


def test_what_is_told_of_the_iteration_that_is_open(server, job):
    """Whoever fell silent is not counted as wanted, and reports do not vanish while they are averaged."""
    here, gone = server.device(), server.device()
    tasks = [here.task(), gone.task()]
    rng = np.random.default_rng()
    send(here, tasks[0], 0, scalars(rng))
    assert told(server) == ("open", 0, 1, 2)
    send(gone, tasks[1], 0, scalars(rng))
    server.advance()
    send(here, tasks[0], 1, scalars(rng))
    assert told(server) == ("open", 1, 1, 2)
    server.store.now = lambda now=server.store.now: now() + 61
    server.advance()
    assert told(server) == ("open", 2, 0, 1)
    send(here, tasks[0], 2, scalars(rng))
    with server.store.database.write() as connection:
        connection.exec_driver_sql("UPDATE rounds SET state = 'closing'")
    assert told(server) == ("closing", 2, 1, 1)


def told(server):
    progress = server.job()["progress"]
    return tuple(progress[name] for name in ("state", "iteration", "reported", "wanted"))


def test_a_report_again_is_the_same_report(server, job):
    device = server.device()
    task = device.task()
    report = encode_report(scalars(np.random.default_rng()))
    assert not send(device, task, 0, report)["repeated"]
    assert send(device, task, 0, report)["repeated"]
    assert send(device, task, 0, scalars(np.random.default_rng(1)), 409)["code"] == "stale"


@pytest.mark.parametrize(
    "data",
    [
        b"y",
        b"x" * 20,
        encode_report(ScalarReport(1.0, 2, np.ones((1, 3), np.float32), np.ones((1, 3), np.float32))),
        encode_report(ScalarReport(1.0, 9, np.ones((1, 2), np.float32), np.ones((1, 2), np.float32))),
        encode_report(ScalarReport(1.0, 2, np.ones((1, 2), np.float32))),
        encode_report(ScalarReport(float("nan"), 2, np.ones((1, 2), np.float32), np.ones((1, 2), np.float32))),
        encode_report(ScalarReport(1.0, 2, np.ones((1, 2), np.float32), np.ones((1, 2), np.float32))) + b"more",
    ],
)
def test_a_report_that_does_not_fit_is_refused(server, job, data):
    device = server.device()
    task = device.task()
    assert send(device, task, 0, data, 422)["code"] == "invalid"
    assert server.job()["refused"] == {"invalid": 1}


@pytest.mark.parametrize("reported", [0, 1])
def test_who_comes_when_the_round_is_over_is_not_refused(server, bundle_name, reported):
    """With no step of its own the part is not needed any more; with some it has been done."""
    training = {"mode": "iteration", "iterations": 2, **SHAPE}
    server.create_job(bundle_name, training=training, per_round=1, over_selection=2)
    server.advance()
    fast, slow = [server.device() for _ in range(2)]
    first, second = fast.task(), slow.task()
    rng = np.random.default_rng()
    for iteration in range(2):
        send(fast, first, iteration, scalars(rng))
        if iteration < reported:
            send(slow, second, iteration, scalars(rng))
        server.advance()
    server.store.now = lambda now=server.store.now: now() + 61  # an iteration's deadline
    server.advance()
    assert send(slow, second, 1, scalars(rng), 409)["code"] == "late"
    assert server.job()["refused"] == {}
    expected = {"accepted": 2} if reported else {"accepted": 1, "spare": 1}
    assert server.call("GET", "/v1/jobs/job/rounds").json()[-1]["tasks"] == expected


def test_modes_are_not_mixed(server, bundle_name, job):
    device = server.device()
    task = device.task()
    assert "mode is iteration" in device.send(task, device.update(task), 422)["detail"]


def test_the_heads_exact_gradient_is_an_option(server, bundle_name):
    training = {"mode": "iteration", "head": "exact", **SHAPE}
    server.create_job(bundle_name, training=training, per_round=2, over_selection=1,
                      optimizers={"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}})  # fmt: skip
    server.advance()
    manifest = server.store.bundles.manifest(bundle_name)
    size = sum(parameter.size for parameter in manifest.head)
    devices = [server.device() for _ in range(2)]
    before = devices[0].weights("job")
    rng = np.random.default_rng()
    gradients = [rng.choice([-0.5, 0.5], size=size).astype(np.float32) for _ in devices]  # two bits hold them
    for device, gradient, examples in zip(devices, gradients, (1, 2), strict=True):
        report = ScalarReport(1.0, examples, np.ones((1, 2), np.float32), None, gradient)
        send(device, device.task(), 0, report)
    server.advance()
    after = devices[0].weights("job")
    moved = np.concatenate([(after[p.name] - before[p.name]).reshape(-1) for p in manifest.head])
    np.testing.assert_allclose(moved, -0.1 * (gradients[0] + 2 * gradients[1]) / 3, atol=1e-6)


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"mode": "iteration", "estimator": "exact"}, "needs mode epoch"),
        ({"mode": "iteration", "optimizer": "adamw"}, "sgd"),
        ({"mode": "iteration", "directions": 9000}, "16383"),
        ({"batch": 77}, "no programs for batch"),
        ({"estimator": "magic"}, "estimator"),
    ],
)
def test_settings_that_cannot_work_are_refused(server, bundle_name, training, told):
    body = {"name": "job", "bundle": bundle_name, "settings": {"training": SHAPE | training}}
    assert told in server.call("POST", "/v1/jobs", 422, json=body).json()["detail"]


def derivatives(size, examples=2):
    values = np.array([[1, -1]], np.float32) * np.float32(size)
    return ScalarReport(0.7, examples, values, values)


def test_a_derivative_that_no_loss_has_is_refused(server, job):
    devices = [server.device() for _ in range(2)]
    tasks = [device.task() for device in devices]
    problem = send(devices[0], tasks[0], 0, derivatives(1e30), 422)
    assert problem["code"] == "norm"
    assert "1e+30" in problem["detail"]
    assert server.job()["refused"] == {"norm": 1}


def test_a_report_far_beyond_the_others_is_left_out(server, bundle_name):
    training = {"mode": "iteration", "iterations": 2, **SHAPE}
    server.create_job(bundle_name, training=training, per_round=14, over_selection=1)
    server.advance()
    devices = [server.device() for _ in range(14)]
    tasks = [device.task() for device in devices]
    for device, task in zip(devices, tasks, strict=True):
        send(device, task, 0, derivatives(1e5 if device is devices[3] else 1.0))
    server.advance()
    (record,) = decode_records(steps(devices[0], 0).content)
    assert tasks[3]["seed"] not in [one.seed for one in record.participants]
    assert len(record.participants) == 13
    assert server.job()["refused"] == {"norm": 1}
    (told,) = server.call("GET", "/v1/jobs/job/refusals").json()
    assert told["device"] == devices[3].id
    assert "100000 times the median" in told["detail"]
    for device, task in zip(devices, tasks, strict=True):
        send(device, task, 1, derivatives(1.0))
    server.advance()
    assert server.job()["done"] == 1


def test_weights_that_are_not_finite_are_never_published(server, bundle_name):
    """Of a report, here, that an earlier version took."""
    server.create_job(bundle_name, training={"mode": "iteration", **SHAPE}, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    before, task = device.weights("job"), device.task()
    with server.store.database.write() as connection:
        assignment = assignments.find(connection, task["id"])
        stored.add(connection, assignment, 0, encode_report(derivatives(1e30)))
    server.advance()
    job = server.job()
    assert (job["version"], job["progress"]["number"]) == (0, 2)
    failed = server.call("GET", "/v1/jobs/job/rounds").json()[-1]
    assert failed["result"]["reason"] == "its weights would not be finite: lower the learning rate"
    for name, value in device.weights("job").items():
        np.testing.assert_array_equal(value, before[name])


SIZES, KEPT = (1.0, 1.0, -2.0, -5.0), [1, 1, -1, 0]


def test_derivatives_far_beyond_the_others_are_made_smaller_before_they_are_published(server, bundle_name):
    """Devices repeat the step from the record, by the mean: all of them take the clipped one."""
    training = {"mode": "iteration", "iterations": 1, **SHAPE}
    settings = {"per_round": 4, "over_selection": 1, "units_per_client": 0, "aggregation": "clipped"}
    server.create_job(bundle_name, training=training, **settings)
    server.advance()
    devices = [server.device(f"board-{number}") for number in range(4)]
    tasks = [device.task() for device in devices]
    weights, state = devices[0].weights("job"), {}
    for device, task, size in zip(devices, tasks, SIZES, strict=True):
        send(device, task, 0, ScalarReport(0.7, 2, *np.full((2, 1, 2), size, np.float32)))
    server.advance()
    (record,) = decode_records(steps(devices[0], 0).content)
    assert [float(one.report.jvp[0, 0]) for one in record.participants] == KEPT
    assert [float(one.report.head_jvp[0, 0]) for one in record.participants] == KEPT
    manifest = server.store.bundles.manifest(bundle_name)
    replay(record, weights, state, manifest, Training(head="apart", **training), ServerOptimizers())
    found = load(devices[0].call("GET", "/v1/jobs/job/weights").content)
    for name, value in {**weights, **state}.items():
        np.testing.assert_array_equal(found[name], value)
    (outlier, _) = server.call("GET", "/v1/jobs/job/rounds").json()[-1]["result"]["outlying"]
    assert outlier["name"] == "board-3"
    assert outlier["why"] == "the derivatives of its units are 5.0 times as large as is usual"


@pytest.mark.parametrize(
    ("declared", "bound", "said", "counts"),
    [(2**40, 1, [2, 2, 1, 1], [1, 1, 1, 1]), (1, 4, [2, 2, 1, 1], [1, 1, 1, 1]),
     (None, 4, [2, 1, 1, 1], [1, 1, 1, 1]), (None, 4, [2, 2, 1, 1], [2, 2, 1, 1])],
)  # fmt: skip
def test_no_device_owns_a_step(server, bundle_name, declared, bound, said, counts):
    """A report weighs no more than its device declared, than a second one, and than the setting lets it."""
    training = {"mode": "iteration", "iterations": 1, **SHAPE}
    settings = {"per_round": 4, "over_selection": 1, "units_per_client": 0, "weight_bound": bound}
    server.create_job(bundle_name, training=training, **settings)
    server.advance()
    devices = [server.device() for _ in range(4)]
    tasks = [device.task(examples=declared or 0) for device in devices]
    weights = devices[0].weights("job")
    rng = np.random.default_rng()
    for device, task, examples in zip(devices, tasks, said, strict=True):
        send(device, task, 0, scalars(rng, training, examples=examples))
    server.advance()
    (record,) = decode_records(steps(devices[0], 0).content)
    assert [one.report.examples for one in record.participants] == counts
    manifest = server.store.bundles.manifest(bundle_name)
    replay(record, weights, {}, manifest, Training(head="apart", **training), ServerOptimizers())
    found = devices[0].weights("job")
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("rule", ["trimmed", "median"])
def test_a_mean_that_devices_cannot_repeat_is_refused(server, bundle_name, rule):
    settings = {"training": {"mode": "iteration", **SHAPE}, "aggregation": rule}
    problem = server.call("POST", "/v1/jobs", 422, json={"name": "job", "bundle": bundle_name, "settings": settings})
    assert f"aggregation {rule} needs mode epoch; mean and clipped do not" in problem.json()["detail"]


# --- what devices measured ---


def judgement(device, task, held_back=10, right_global=4, right_personal=7, status=200):
    said = {"held_back": held_back, "right_global": right_global, "right_personal": right_personal}
    return device.call("PUT", f"/v1/tasks/{task['id']}/judgement", status, json=said).json()


def test_accuracies_come_behind_the_last_step_and_replace_each_other(server, bundle_name):
    training = {"mode": "iteration", "iterations": 1, **SHAPE}
    server.create_job(bundle_name, training=training, per_round=2, over_selection=1, device_evaluation=1)
    server.advance()
    devices = [server.device() for _ in range(2)]
    tasks = [device.task(examples=100) for device in devices]
    judgement(devices[0], tasks[0])  # before the server has closed the round
    play(server, devices, tasks, np.random.default_rng(), iterations=1)
    judgement(devices[1], tasks[1], held_back=30, right_global=30, right_personal=3)
    judgement(devices[1], tasks[1], held_back=30, right_global=15, right_personal=27)
    known = {
        one["name"]: one["value"] for one in server.call("GET", "/v1/jobs/job/metrics").json() if one["round"] == 1
    }
    assert known["evaluated"] == 2
    assert known["accuracy_global"] == pytest.approx((4 + 15) / 40)
    assert known["accuracy_personal"] == pytest.approx((7 + 27) / 40)
    assert known["loss"] == pytest.approx(0.7)
    result = server.call("GET", "/v1/jobs/job/rounds").json()[1]["result"]
    assert {name: result[name] for name in known} == known, "what is kept of the round has them too"


def test_accuracies_of_a_job_that_has_ended_are_kept_with_it(server, bundle_name):
    training = {"mode": "iteration", "iterations": 1, **SHAPE}
    server.create_job(bundle_name, training=training, per_round=1, over_selection=1, device_evaluation=1, rounds=1)
    server.advance()
    device = server.device()
    task = device.task(examples=100)
    judgement(device, task, right_personal=9)  # before the server has closed the last round
    play(server, [device], [task], np.random.default_rng(), iterations=1)
    (round_,) = server.call("GET", "/v1/jobs/job/rounds").json()
    assert round_["result"]["accuracy_personal"] == 0.9
    judgement(device, task, right_personal=8)  # and after the job has ended
    (round_,) = server.call("GET", "/v1/jobs/job/rounds").json()
    job = server.job()
    assert (job["state"], job["metrics"]["accuracy_personal"], round_["result"]["accuracy_personal"]) == (
        "ended",
        0.8,
        0.8,
    )


def test_accuracies_that_cannot_be_are_refused(server, bundle_name, job):
    device, other = server.device(), server.device()
    task = device.task(examples=20)
    assert "did not ask its device for measurements" in judgement(device, task, status=422)["detail"]
    server.call("POST", "/v1/jobs/job/stop")
    training = {"mode": "iteration", "iterations": 1, **SHAPE}
    server.create_job(bundle_name, "asked", training=training, per_round=1, over_selection=1, device_evaluation=1)
    server.advance()
    task = other.task(examples=20)
    assert "11 right of 10" in judgement(other, task, right_personal=11, status=422)["detail"]
    assert "the device declared 20 examples" in judgement(other, task, held_back=21, status=422)["detail"]
    assert "another device's" in judgement(device, task, status=403)["detail"]
    assert judgement(other, task, held_back=20) == {"wait": 0.0, "repeated": False}

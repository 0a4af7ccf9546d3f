"""Rounds from check-in to weights, through the real application."""

import io
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load

from edge_client.bundle.names import ERROR
from edge_client.training.optimizers import server_step
from edge_client.wire.protocol import ServerOptimizer, ServerOptimizers
from server.jobs.settings import JobSettings
from server.rounds.claims import claim
from server.storage.jobs import find_job
from server.storage.work import rounds
from server.strategy.state import NEWEST, ServerState, apply_change
from tests.server.conftest import encode

AVERAGE = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}


def play(server, devices, changes, examples=None):
    """Each device takes a task, all report."""
    tasks = [device.task() for device in devices]
    for device, task, change, count in zip(devices, tasks, changes, examples or [8] * len(devices), strict=True):
        device.send(task, device.update(task, change, count))
    server.advance()
    return tasks


def names_of(server, bundle_name, units):
    manifest = server.store.bundles.manifest(bundle_name)
    return [parameter.name for unit in units for parameter in manifest.units[unit].parameters]


def test_a_round_averages_by_examples_over_holders(server, bundle_name):
    server.create_job(bundle_name, per_round=3, over_selection=1, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(3)]
    before = devices[0].weights("job")
    tasks = play(server, devices, [0.1, 0.2, 0.4], [2, 3, 3])
    after = devices[0].weights("job")
    head = server.store.bundles.manifest(bundle_name).head[0].name
    np.testing.assert_allclose(after[head] - before[head], (0.2 + 0.6 + 1.2) / 8, atol=1e-6)
    for task, change in zip(tasks, [0.1, 0.2, 0.4], strict=True):
        for name in names_of(server, bundle_name, task["units"]):
            np.testing.assert_allclose(after[name] - before[name], change, atol=1e-6)
    job = server.job()
    assert (job["version"], job["done"], job["progress"]["number"]) == (1, 1, 2)
    assert job["metrics"]["reports"] == 3
    assert job["metrics"]["examples"] == 8


def test_the_adaptive_optimizer_is_that_of_the_library(server, bundle_name):
    """Units and head move by their own settings."""
    optimizers = {"units": {"kind": "fedyogi", "learning_rate": 0.03}, "head": {"kind": "fedadam"}}
    server.create_job(bundle_name, per_round=1, over_selection=1, assignment="all", optimizers=optimizers)
    server.advance()
    device = server.device()
    weights, state = device.weights("job"), {}
    head = frozenset(p.name for p in server.store.bundles.manifest(bundle_name).head)
    wanted = ServerOptimizers(ServerOptimizer("fedyogi", 0.03), ServerOptimizer("fedadam"))
    for change in (0.1, -0.3):
        play(server, [device], [change])
        moved = {n: (w + np.float32(change)) - w for n, w in weights.items()}
        server_step(weights, moved, state, wanted, head)
        found = device.weights("job")
        for name, value in weights.items():
            np.testing.assert_allclose(found[name], value, atol=1e-6)
        weights = found


@pytest.mark.parametrize("aggregation", ["mean", "agreeing"])
def test_a_number_moves_as_far_as_devices_agree_on_it(server, bundle_name, aggregation):
    """Four devices want the same of the first numbers and, one by one, another thing of all others."""
    units = {"kind": "fedsnr", "learning_rate": 0.02}
    optimizers = {"units": units, "head": {"kind": "fedavg"}}
    server.create_job(
        bundle_name, per_round=4, over_selection=1, assignment="all", optimizers=optimizers, aggregation=aggregation
    )
    server.advance()
    devices = [server.device() for _ in range(4)]
    before = devices[0].weights("job")
    tasks = [device.task() for device in devices]
    random = np.random.default_rng(3)
    sent = []
    for device, task in zip(devices, tasks, strict=True):
        update = {
            name: value + random.choice([-0.1, 0.1], value.shape).astype(np.float32) for name, value in before.items()
        }
        for value, start in zip(update.values(), before.values(), strict=True):
            value.reshape(-1)[:1] = start.reshape(-1)[:1] + 0.1
        sent.append(update)
        device.send(task, encode(update))
    server.advance()
    after = devices[0].weights("job")
    for name in names_of(server, bundle_name, range(len(server.store.bundles.manifest(bundle_name).units))):
        far = np.stack([update[name] - before[name] for update in sent]).astype(np.float64)
        sure = far.mean(0) / np.sqrt(np.square(far).mean(0) / 4)
        np.testing.assert_allclose(after[name] - before[name], 0.02 * 0.1 * sure, atol=1e-6)
        assert (after[name] - before[name]).reshape(-1)[0] == pytest.approx(0.02 * 0.1 * 2, rel=1e-3)
    kept = server.store.models.load(find_job(server.store, "job"), 1).moments
    assert not [name for name in kept if name.startswith(ERROR)]


def test_the_result_is_a_running_average(server, bundle_name):
    """Devices go on from the weights themselves; what is downloaded and measured is the average over versions."""
    server.create_job(bundle_name, per_round=1, over_selection=1, assignment="all", optimizers=AVERAGE, average=0.6)
    server.advance()
    device = server.device()
    average, versions = None, []
    for change in (0.4, -0.2, 0.3):
        play(server, [device], [change])
        weights = device.weights("job")
        versions.append(weights)
        keeps = min(0.6, (len(versions) - 1) / (len(versions) + NEWEST))  # of few versions, less of the first
        average = weights if average is None else {n: keeps * average[n] + (1 - keeps) * w for n, w in weights.items()}
    with zipfile.ZipFile(io.BytesIO(server.call("GET", "/v1/jobs/job/adapter").content)) as archive:
        found = load(archive.read("adapter_model.safetensors"))
    for name, value in average.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
        assert np.abs(versions[-1][name] - value).max() > 0.01
    job = find_job(server.store, "job")
    assert not any(name.startswith("a:") for name in device.weights("job"))
    kept = server.store.models.load(job, job.version)
    assert kept.average.keys() == average.keys()


@pytest.mark.parametrize(("rounds", "behind"), [(2, 1 / 5), (11, 10 / 5), (400, 0.9 / (1 - 0.9))])
def test_the_average_is_a_fifth_of_few_rounds_behind_and_of_many_what_it_keeps(server, bundle_name, rounds, behind):
    """Weights that go on by one in each round tell how many rounds ago they were as the average is."""
    manifest = server.store.bundles.manifest(bundle_name)
    settings = JobSettings(average=0.9, optimizers=AVERAGE)
    model = ServerState(0, {"weight": np.zeros(3)})
    for _ in range(rounds):
        model = apply_change(model, {"weight": np.ones(3)}, settings, manifest)
    np.testing.assert_allclose(model.weights["weight"] - model.result["weight"], behind, rtol=1e-6)


def test_a_unit_whose_holders_vanished_keeps_its_value(server, bundle_name):
    server.create_job(bundle_name, per_round=2, minimum=1, over_selection=1, optimizers=AVERAGE, deadline=1)
    server.advance()
    here, gone = server.device(), server.device()
    before = here.weights("job")
    task, lost = here.task(), gone.task()
    here.send(task, here.update(task))
    server.store.now = lambda now=server.store.now: now() + 2
    server.advance()
    after = here.weights("job")
    for name in names_of(server, bundle_name, lost["units"]):
        np.testing.assert_array_equal(after[name], before[name])
    told = gone.send(lost, gone.update(lost), 409)
    assert told["code"] == "late"
    assert "(the round's time was up)" in told["detail"]
    assert server.job()["refused"] == {"late": 1}


def after_two(server, bundle_name, **settings):
    """A third device, its task and its update, in a round that wanted two and has them."""
    server.create_job(bundle_name, per_round=2, over_selection=1.5, optimizers=AVERAGE, **settings)
    server.advance()
    *two, third = [server.device() for _ in range(3)]
    *tasks, last = [device.task() for device in (*two, third)]
    for device, task in zip(two, tasks, strict=True):
        device.send(task, device.update(task))
    return third, last, third.update(last)


@pytest.mark.parametrize("closed", [True, False])
def test_who_comes_when_others_were_enough_is_not_refused(server, bundle_name, closed):
    third, task, content = after_two(server, bundle_name)
    if closed:
        server.advance()
    else:
        with server.store.database.read() as connection:
            newest = rounds.newest(connection, server.job()["id"])
        assert claim(server.store, newest)
    told = third.send(task, content, 409)
    assert (told["code"], server.job()["refused"]) == ("late", {})
    assert server.call("GET", "/v1/jobs/job/refusals").json() == []
    if closed:
        assert "(others were enough)" in told["detail"]
        assert server.call("GET", "/v1/jobs/job/rounds").json()[1]["tasks"] == {"accepted": 2, "spare": 1}
        assert third.task()["round"] == 2, "it waits for nobody"


@pytest.mark.parametrize("closing", [True, False], ids=["being closed", "not looked at yet"])
def test_who_was_not_needed_has_missed_nothing_however_long_the_server_takes(server, bundle_name, closing):
    """Evaluating a round, or another job's, may last beyond its deadline: it was complete before."""
    third, task, content = after_two(server, bundle_name, deadline=300)
    if closing:
        with server.store.database.read() as connection:
            newest = rounds.newest(connection, server.job()["id"])
        assert claim(server.store, newest, in_time=True)
    server.store.now = lambda now=server.store.now: now() + 600
    if closing:
        third.send(task, content, 409)
    server.advance()
    assert "(others were enough)" in third.send(task, content, 409)["detail"]
    assert server.job()["refused"] == {}
    assert server.call("GET", "/v1/jobs/job/rounds").json()[1]["tasks"] == {"accepted": 2, "spare": 1}
    assert third.task()["round"] == 2, "it waits for nobody"


def test_a_job_that_is_stopped_refuses_nobody(server, bundle_name):
    server.create_job(bundle_name, per_round=2)
    server.advance()
    device = server.device()
    task = device.task()
    content = device.update(task)
    server.call("POST", "/v1/jobs/job/stop")
    assert "the job ended" in device.send(task, content, 409)["detail"]
    assert server.job()["refused"] == {}


def test_a_round_without_enough_reports_fails_and_the_next_one_opens(server, bundle_name):
    server.create_job(bundle_name, per_round=4, minimum=2, deadline=1)
    server.advance()
    device = server.device()
    task = device.task()
    device.send(task, device.update(task))
    server.store.now = lambda now=server.store.now: now() + 2
    server.advance()
    failed, opened = reversed(server.call("GET", "/v1/jobs/job/rounds").json())
    assert (failed["state"], opened["state"], opened["number"]) == ("failed", "open", 2)
    assert "1 of at least 2" in failed["result"]["reason"]
    assert server.job()["version"] == 0


def test_the_clock_of_a_round_starts_with_its_first_device(server, bundle_name):
    server.create_job(bundle_name, per_round=2, deadline=100)
    server.advance()
    server.store.now = lambda now=server.store.now: now() + 1000
    server.advance()
    assert server.job()["progress"]["number"] == 1
    assert server.device().task()["seconds"] == pytest.approx(100, abs=20)


def test_a_dead_devices_place_is_covered_by_over_selection(server, bundle_name):
    server.create_job(bundle_name, per_round=2, over_selection=1.5)
    server.advance()
    devices = [server.device() for _ in range(3)]
    tasks = [device.task() for device in devices]
    assert tasks[2]["units"] == tasks[0]["units"]
    for device, task in zip(devices[1:], tasks[1:], strict=True):
        device.send(task, device.update(task))
    server.advance()
    assert server.job()["version"] == 1
    assert server.device().check_in()["task"]["round"] == 2


def test_a_full_round_tells_devices_when_to_come_back(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    server.device().task()
    answer = server.device().check_in()
    assert answer["task"] is None
    assert "no free slot" in answer["reason"]
    assert 0.5 * 30 <= answer["wait"] <= 1.5 * 30


def test_a_device_that_asks_again_gets_its_task_again(server, bundle_name):
    server.create_job(bundle_name)
    server.advance()
    device = server.device()
    assert device.task()["id"] == device.task()["id"]


def test_the_same_update_twice_is_one(server, bundle_name):
    server.create_job(bundle_name, per_round=2)
    server.advance()
    device = server.device()
    task = device.task()
    content = device.update(task)
    assert device.send(task, content)["repeated"] is False
    assert device.send(task, content)["repeated"] is True
    assert device.send(task, device.update(task, 0.3), 409)["code"] == "late"
    other = server.device()
    last = other.task()
    other.send(last, other.update(last))
    server.advance()
    assert server.job()["metrics"]["reports"] == 2
    assert device.send(task, content)["repeated"] is True  # the receipt was lost, the round is over


def test_a_failed_client_is_data_and_frees_its_place(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    broken = server.device()
    task = broken.task()
    broken.call("POST", f"/v1/tasks/{task['id']}/failure", json={"reason": "label 'x' is unknown"})
    assert broken.check_in()["task"] is None  # others first
    assert server.device().task()["slot" if "slot" in task else "units"] == task["units"]


def test_a_job_ends_after_its_rounds(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1, rounds=2)
    server.advance()
    device = server.device()
    for _ in range(2):
        play(server, [device], [0.1])
    job = server.job()
    assert (job["state"], job["reason"]) == ("ended", "2 rounds are done")
    assert "no job" in device.check_in()["reason"]
    server.call("POST", "/v1/jobs/job/resume", 409)


def test_pausing_and_resuming(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    task = device.task()
    server.call("POST", "/v1/jobs/job/pause")
    device.send(task, device.update(task))  # what is under way may finish
    server.advance()
    assert server.job()["version"] == 1
    assert device.check_in()["task"] is None
    server.call("POST", "/v1/jobs/job/resume")
    server.advance()
    assert device.task()["round"] == 2


def test_several_jobs_take_turns(server, bundle_name):
    for name in ("one", "two"):
        server.create_job(bundle_name, name, per_round=1, over_selection=1)
    server.advance()
    tasks = [server.device().task() for _ in range(2)]
    assert {task["job_name"] for task in tasks} == {"one", "two"}


def test_a_device_may_want_one_job_only(server, bundle_name):
    for name in ("one", "two"):
        server.create_job(bundle_name, name, per_round=5)
    server.advance()
    assert {server.device().task(job="two")["job_name"] for _ in range(3)} == {"two"}
    assert "not running" in server.device().check_in(job="three")["reason"]


@pytest.mark.parametrize(
    ("settings", "values", "reason"),
    [
        ({}, {"runtimes": ["executorch"]}, "needs one of the runtimes onnx"),
        ({"mains_only": True}, {"power": "battery"}, "battery"),
        ({"unmetered_only": True}, {"metered": True}, "metered"),
        ({}, {"memory_bytes": 1000}, "no place"),
    ],
)
def test_a_device_gets_nothing_that_it_must_not_have(server, bundle_name, settings, values, reason):
    server.create_job(bundle_name, **settings)
    server.advance()
    assert reason in server.device().check_in(**values)["reason"]


def test_clients_of_a_round_have_different_seeds_and_a_rerun_the_same(serving, bundle, tmp_path):
    def seeds(folder):
        with serving(folder) as server:
            server.create_job(server.upload(bundle), per_round=3, seed=7)
            server.advance()
            return [server.device().task()["seed"] for _ in range(3)]

    first = seeds(tmp_path / "a")
    assert len(set(first)) == 3
    assert seeds(tmp_path / "b") == first


def test_only_what_changed_is_downloaded(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1, optimizers=AVERAGE)
    server.advance()
    device = server.device()
    (task,) = play(server, [device], [0.1])
    changed = device.weights("job", since=0)
    head = {p.name for p in server.store.bundles.manifest(bundle_name).head}
    assert changed.keys() == {*names_of(server, bundle_name, task["units"]), *head}
    device.call("GET", "/v1/jobs/job/weights", 204, params={"since": 1})
    assert device.call("GET", "/v1/jobs/job/weights", 409, params={"since": 9}).json()["code"] == "stale"


def test_a_version_is_known_by_when_it_was_published(server, bundle_name):
    """A server restored from a backup publishes numbers again that devices have of the line that was lost."""
    server.create_job(bundle_name, per_round=1, over_selection=1, optimizers=AVERAGE)
    server.advance()
    device = server.device()
    assert device.task()["published"] == 0
    play(server, [device], [0.1])
    server.advance()
    began = device.task()["published"]
    assert began == server.store.models.published(server.call("GET", "/v1/jobs/job").json()["id"], 1) > 0
    device.call("GET", "/v1/jobs/job/weights", 204, params={"since": 1, "published": began})
    for since, published in ((1, began + 1e-3), (1, 5.0), (0, began)):
        asked = {"since": since, "published": published}
        if since:
            assert device.call("GET", "/v1/jobs/job/weights", 409, params=asked).json()["code"] == "stale"
        else:
            device.call("GET", "/v1/jobs/job/weights", params=asked)


def test_device_evaluation_is_summed(server, bundle_name):
    """Not of the first round's global model: its task layer, which nobody trained, is right by chance alone."""
    server.create_job(bundle_name, per_round=2, over_selection=1, device_evaluation=1, target=0.8)
    server.advance()
    devices = [server.device(), server.device()]
    for round_, rights in enumerate((((0, 4), (1, 6)), ((3, 4), (4, 7)))):
        tasks = [device.task() for device in devices]
        for device, task, right in zip(devices, tasks, rights, strict=True):
            assert task["evaluate"]
            device.send(task, device.update(task, held_back=10, right_global=right[0], right_personal=right[1]))
        server.advance()
        metrics = server.job()["metrics"]
        assert metrics.get("accuracy_global") == (0.35 if round_ else None)
        assert metrics["accuracy_personal"] == (0.55 if round_ else 0.5)
    assert server.job()["state"] == "running"


def test_no_improvement_stops_a_job(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1, device_evaluation=1, patience=2)
    server.advance()
    device = server.device()
    for right in (5, 6, 6, 4):
        task = device.task()
        device.send(task, device.update(task, held_back=10, right_global=right, right_personal=right))
        server.advance()
    assert server.job()["reason"] == "2 evaluations were no better than 0.6000"


def test_an_outlier_that_came_first_is_left_out_at_the_end(server, bundle_name):
    server.create_job(bundle_name, per_round=4, over_selection=1, optimizers=AVERAGE, norm_bound=5)
    server.advance()
    devices = [server.device() for _ in range(4)]
    before = devices[0].weights("job")
    tasks = play(server, devices, [50.0, 0.1, 0.1, 0.1])
    head = server.store.bundles.manifest(bundle_name).head[0].name
    after = devices[0].weights("job")
    np.testing.assert_allclose(after[head] - before[head], 0.1, atol=1e-5)
    round_ = server.call("GET", "/v1/jobs/job/rounds").json()[-1]
    assert round_["tasks"] == {"accepted": 3, "refused": 1}
    assert len(tasks) == 4


def test_old_weights_are_forgotten_when_asked(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1, keep=2, rounds=10)
    server.advance()
    device = server.device()
    for change in (0.1, 0.2, 0.3):
        play(server, [device], [change])
    for version, status in ((3, 200), (2, 200), (1, 410)):
        server.call("GET", "/v1/jobs/job/adapter", status, params={"version": version})
    blobs = [path for path in server.store.blobs.folder.rglob("*") if path.is_file()]
    assert len(blobs) == 4  # weights and state of two versions; updates are gone

"""Clients of the real server over real HTTP: rounds of both modes, from enrolment to prediction."""

import hashlib
import json
import threading
from dataclasses import asdict

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME
from edge_client.client.client import Client, Idle
from edge_client.client.conditions import Conditions
from edge_client.client.waits import FAILURE
from edge_client.data.batches import Batches
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import examples_for
from edge_client.data.sources import open_data
from edge_client.errors import DataError, SpryError, StoreError, Unauthorized
from edge_client.estimators.registry import estimator_for
from edge_client.events import Event
from edge_client.runtimes.runtime import chosen, open_runtime
from edge_client.step.passes import Passes
from edge_client.store.jobs import DeviceStore
from edge_client.tasks.registry import task_named
from edge_client.training.epoch import TrainingState, train, update
from edge_client.wire.clipping import changes_of, length_of
from edge_client.wire.protocol import Enrolled
from server.storage.jobs import find_job
from server.storage.work import assignments, rounds
from tests.edge_client.conftest import ROWS


@pytest.fixture
def bundle(fleet, trainable) -> str:
    return fleet.upload(trainable)


# --- rounds ---


def test_rounds_of_mode_epoch(fleet, bundle):
    fleet.job(bundle, rounds=2, device_evaluation=1)
    client = fleet.client(holdout=0.3)
    assert client.run(rounds=2).rounds == 2
    assert fleet.ended()["version"] == 2
    assert [kind for kind in fleet.kinds() if kind not in ("download", "waiting")] == [
        "enrolled", "task", "progress", "evaluated", "uploaded", "task", "progress", "evaluated", "uploaded",
    ]  # fmt: skip
    assert len({event.details["round"] for event in fleet.told("task")}) == 2

    predicted = client.predict(["the ice is on the lake", "a train"])
    assert predicted[0].label in ("no", "maybe", "yes")
    assert sum(predicted[0].scores.values()) == pytest.approx(1, abs=1e-5)
    own = client.predict(["the ice is on the lake"], personal=True)
    assert own[0].scores != predicted[0].scores


def test_an_update_of_a_private_job_is_short_and_silent_when_it_leaves(fleet, bundle):
    private = {"privacy_noise": 1.0, "privacy_clip": 0.003}
    fleet.job(bundle, rounds=1, keep_updates=True, **private)
    fleet.client().run(rounds=1)
    fleet.ended()
    store = fleet.app.state.services.store
    job = find_job(store, "topics")
    with store.database.read() as connection:
        (reported,) = assignments.accepted(connection, rounds.find(connection, job.id, 1))
    sent = reported.assignment.sent
    start = store.models.load(job, 0).weights
    assert length_of(changes_of(start, store.blobs.tensors(sent.sha256))) == pytest.approx(0.003, rel=1e-3)
    with safe_open(store.blobs.path(sent.sha256), "np") as file:
        told = json.loads(file.metadata()["report"])
    assert (told["loss"], told["examples"]) == (0, 1)


def test_a_task_is_trained_as_it_says_whatever_others_of_its_job_said(stage, trainable, changed, tmp_path):
    """A server may ask another estimator of each device, round by round."""
    stage.folder = trainable
    opened = Bundle.open(trainable)
    name = hashlib.sha256((trainable / FILE_NAME).read_bytes()).hexdigest()
    client = Client(stage.address, data=ROWS, home=tmp_path, patience=5, threads=1, holdout=0.0)
    client.store.save_identity(Enrolled("d-1", "secret"))
    for number, asked in enumerate([{}, {"estimator": "mixed"}, {"estimator": "exact"}, {"estimator": "mixed"}]):
        task = changed(id=f"task-{number}", bundle=name, units=[0, 3], cut=1, **asked)
        stage.problem(404, "http")  # it takes no key in place of the secret
        if not number:
            stage.answer([])  # no job is open, as far as it tells
        stage.answer({"task": asdict(task), "wait": 0.0, "reason": ""})
        stage.answer({"wait": 0.0, "repeated": False})
        client.run(once=True)
        method, path, _, body = stage.seen[-1]
        assert (method, path) == ("PUT", f"/v1/tasks/{task.id}/update")
        expected = trained_here(opened, task)
        sent = load(body)
        assert sent.keys() == expected.keys()
        for parameter, value in sent.items():
            np.testing.assert_array_equal(value, expected[parameter], err_msg=f"{asked} {parameter}")
    client.close()


def trained_here(bundle, task):
    """The update of a task, by its own settings."""
    encoder = TextEncoder(bundle.tokenizer(), bundle.manifest, task.training.batch, task.training.length)
    kind = task_named(bundle.manifest.model.task)
    examples = examples_for(open_data(ROWS), kind.check(bundle.manifest.model.labels))
    batches = Batches(examples, encoder, kind.encode, task.seed)
    with open_runtime("onnx", bundle.folder, threads=1) as runtime:
        estimator = estimator_for(bundle.manifest, task, Passes(bundle.manifest, runtime, task))
        *_, state = train(task, bundle.manifest, estimator, batches, TrainingState(bundle.initial_adapter()))
    return update(task, bundle.manifest, state)


@pytest.mark.parametrize("training", [{"head": "exact"}, {"head": "apart"}, {"estimator": "central"}], ids=str)
def test_rounds_of_mode_iteration(fleet, bundle, training):
    fleet.job(bundle, rounds=2, training={"mode": "iteration", "iterations": 3} | training)
    client = fleet.client()
    assert client.run(rounds=2).rounds == 2
    steps = [event.details["step"] for event in fleet.told("progress")]
    assert steps == [1, 2, 3, 1, 2, 3]
    found = fleet.state()
    kept = DeviceStore(fleet.folder / "home", fleet.address).job(found["id"]).weights(bundle)
    assert kept.version == found["version"] == 6
    store = fleet.app.state.services.store
    server = store.models.load(find_job(store, "topics"), 6)
    for name, value in server.weights.items():
        np.testing.assert_allclose(kept.weights[name], value, atol=1e-6)
    assert client.predict(["it"], personal=True)[0].label in ("no", "maybe", "yes")
    (DeviceStore(fleet.folder / "home", fleet.address).job(found["id"]).folder / "personal.safetensors").unlink()
    with pytest.raises(StoreError, match="no personal adapter"):
        client.predict(["it"], personal=True)


def test_a_language_model_is_measured_on_devices(fleet, talker):
    said = ["ok.", "42", "tea", "the tea", "is hot"]
    rows = [{"prompt": f"{number} ", "completion": said[number % 5]} for number in range(20)]
    training = {"pack": True, "batch": 2, "length": 32, "learning_rate": 1e-6}
    fleet.job(fleet.upload(talker), rounds=1, device_evaluation=1, training=training)
    client = fleet.client(rows, holdout=0.3)
    assert client.run(rounds=1).rounds == 1
    (told,) = (event.details for event in fleet.told("evaluated"))
    metrics = fleet.ended()["metrics"]
    assert metrics["test_loss_global"] == pytest.approx(told["sums_global"]["test_loss"] / told["held_back"], rel=1e-5)
    assert metrics["perplexity_personal"] == pytest.approx(np.exp(metrics["test_loss_personal"]), rel=1e-4)
    assert metrics["examples"] < 8  # sequences, of 14 rows or so


def test_a_language_model_of_ones_own_after_a_round_of_mode_iteration(fleet, talker):
    """It has no task layer to fit: the device goes on by steps of its own."""
    name = fleet.upload(talker)
    rows = [{"messages": [{"role": "user", "content": "ok."}, {"role": "assistant", "content": "42"}]}] * 4
    training = {"mode": "iteration", "iterations": 2, "batch": 2, "length": 32}
    fleet.job(name, rounds=1, training=training)
    client = fleet.client(rows)
    assert client.run(rounds=1).rounds == 1
    kept = DeviceStore(fleet.folder / "home", fleet.address).job(fleet.state()["id"])
    everybodys, own = kept.weights(name), kept.personal(name)
    assert own.version == everybodys.version == 2
    assert any((own.weights[one] != value).any() for one, value in everybodys.weights.items())
    assert client.predict(["the"], personal=True)[0].label is not None


@pytest.mark.parametrize("training", [{"mode": "iteration", "iterations": 2}, {"mode": "epoch"}], ids=str)
def test_a_device_has_a_model_for_what_is_usual_with_it(fleet, bundle, training):
    fleet.job(bundle, rounds=1, device_evaluation=1, training=training)
    client = fleet.client([{**row, "label": "yes"} for row in ROWS])
    assert client.run(rounds=1).rounds == 1
    own, everybodys = (client.predict(["the ice is on the lake"], personal=mine)[0].scores for mine in (True, False))
    assert own["yes"] > max(0.5, everybodys["yes"])


def test_a_job_that_is_stopped_in_the_middle_of_a_round(fleet, bundle):
    """A device that waits for the others' step goes on at once, rather than ask until the round's time is over."""
    fleet.job(bundle, per_round=2, minimum=2, training={"mode": "iteration", "iterations": 3})
    asked = []

    def stop(event):
        fleet.events.append(event)
        if event.kind == "progress":
            threading.Timer(0.3, fleet.call, ("POST", "/v1/jobs/topics/stop")).start()

    client = fleet.client(on_event=stop)
    steps = client.server.steps
    client.server.steps = lambda *args: (asked.append(args), steps(*args))[1]
    assert client.run(rounds=1).rounds == 1
    assert len(fleet.told("progress")) == 1
    assert len(asked) <= 3
    assert client.run(once=True).rounds == 0


@pytest.mark.parametrize("training", [{"estimator": "exact"}, {"estimator": "central", "head": "joint"}], ids=str)
def test_other_estimators(fleet, bundle, training):
    fleet.job(bundle, rounds=1, training=training)
    assert fleet.client().run(rounds=1).rounds == 1


def test_two_devices_share_a_round(fleet, bundle):
    fleet.job(bundle, rounds=2, per_round=2, training={"mode": "iteration", "iterations": 2})
    clients = [fleet.client(home=f"home{i}") for i in range(2)]
    threads = [threading.Thread(target=client.run, kwargs={"rounds": 2}) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    job = fleet.state()
    kept = [DeviceStore(fleet.folder / f"home{i}", fleet.address).job(job["id"]).weights(bundle) for i in range(2)]
    assert [one.version for one in kept] == [job["version"]] * 2
    for name, value in kept[0].weights.items():
        np.testing.assert_array_equal(kept[1].weights[name], value)


# --- coming back ---


def test_a_device_keeps_its_identity(fleet, bundle):
    fleet.job(bundle, rounds=3)
    fleet.client().run(rounds=1)
    fleet.client(token=False).run(rounds=1)
    assert len(fleet.call("GET", "/v1/devices").json()) == 1
    fetched = [event.details.get("file", "") for event in fleet.told("download")]
    assert len(fetched) == len(set(fetched))  # nothing twice


class Killed(BaseException):
    """An error that nothing in the client handles, like SIGKILL."""


def test_killed_in_training_it_goes_on_where_it_was(fleet, bundle, monkeypatch):
    monkeypatch.setattr("edge_client.rounds.participation.CHECKPOINT_SECONDS", 0.0)
    fleet.job(bundle, rounds=1, training={"epochs": 4})

    def kill(event):
        fleet.events.append(event)
        if event.kind == "progress" and event.details["step"] == 5:
            raise Killed

    client = fleet.client(on_event=kill)
    with pytest.raises(Killed):
        client.run()
    fleet.events.clear()
    assert fleet.client(token=False).run(rounds=1).rounds == 1
    assert [event.message for event in fleet.told("resumed")] == ["round 1 goes on after step 4"]
    assert fleet.told("progress")[0].details["step"] == 5


def test_whoever_comes_in_the_middle_of_a_round_reports_the_step_that_is_open(fleet, bundle):
    """Also where the server has no steps to repeat any more, and gives the weights that they led to."""
    fleet.job(bundle, rounds=3, over_selection=2, keep=1, training={"mode": "iteration", "iterations": 3})

    def leave(event):
        fleet.events.append(event)
        if event.kind == "progress" and (event.details["round"], event.details["step"]) == (3, 1):
            raise Killed

    with pytest.raises(Killed):
        fleet.client(home="first", on_event=leave).run()
    fleet.until(lambda: fleet.state()["version"] == 7)
    fleet.events.clear()
    assert fleet.client(home="second").run(rounds=1).rounds == 1
    assert [event.details["step"] for event in fleet.told("progress")] == [2, 3]
    assert fleet.ended()["version"] == 9


def test_interrupted_it_keeps_a_checkpoint(fleet, bundle):
    fleet.job(bundle, rounds=1, training={"epochs": 4})

    def interrupt(event):
        if event.kind == "progress" and event.details["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet.client(on_event=interrupt).run()
    fleet.client(token=False).run(rounds=1)
    assert fleet.told("resumed")[0].details["step"] == 3


def test_killed_before_the_receipt_it_sends_the_result_again(fleet, bundle, monkeypatch):
    fleet.job(bundle, rounds=1)
    from edge_client.store.job import JobStore

    with monkeypatch.context() as patch:
        patch.setattr(JobStore, "finish", lambda self: (_ for _ in ()).throw(Killed) if self.update() else None)
        with pytest.raises(Killed):
            fleet.client().run()
    fleet.events.clear()
    assert fleet.client(token=False).run(rounds=1).rounds == 1
    (sent,) = fleet.told("uploaded")
    assert sent.details["repeated"] is True
    assert not fleet.told("progress")


def test_a_long_wait_may_end_the_process(fleet, bundle, monkeypatch):
    """What goes on in its place waits first, and counts no rows: the file may be half written at that moment."""
    monkeypatch.setattr("edge_client.client.waits.LONG_SECONDS", 0.0)
    fleet.job(bundle, rounds=2)
    path = fleet.folder / "my.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in fleet.rows))
    idle: list[Idle] = []

    def end(wait: Idle) -> None:
        idle.append(wait)
        raise Killed

    with pytest.raises(Killed):
        fleet.client(path, on_idle=end).run()
    assert idle[0].rows == len(fleet.rows)
    waits: list[float] = []
    path.write_text("nonsense")

    def unfit() -> list[str]:
        return [event.message for event in fleet.told("warning") if "do not fit" in event.message]

    def pause(seconds: float) -> None:  # until the second round, which the server may take its time to open
        waits.append(seconds)
        if unfit():
            raise Killed
        fleet.pause(seconds)

    with pytest.raises(Killed):
        fleet.client(path, token=False, pause=pause).run(idle=Idle(7.0, idle[0].reason, idle[0].rows))
    assert waits[0] == 7.0
    assert "1 of 1 rows: is not JSON" in unfit()[0]
    assert len(fleet.told("uploaded")) == 1


@pytest.mark.parametrize("mode", ["epoch", "iteration"])
def test_it_tells_how_it_does_and_does_not_forget_over_a_long_wait(fleet, bundle, monkeypatch, mode):
    monkeypatch.setattr("edge_client.client.waits.LONG_SECONDS", 0.0)
    fleet.job(bundle, rounds=5, training={"mode": mode, "iterations": 3})
    offers = fleet.app.state.services.offers
    said = []
    answer = offers.answer
    monkeypatch.setattr(offers, "answer", lambda device, check_in: (said.append(check_in), answer(device, check_in))[1])
    idle: list[Idle] = []

    def end(wait: Idle) -> None:
        idle.append(wait)
        raise Killed

    with pytest.raises(Killed):
        fleet.client(on_idle=end).run()
    assert said[0].step_seconds is None
    assert said[0].resident_bytes > 10e6
    (found,) = idle
    assert 0 < found.step_seconds < 60
    following = fleet.client(token=False)
    following.run(rounds=1, idle=Idle(0.0, step_seconds=123.0, rows=found.rows, resident_bytes=2**40))
    told = next(message for message in said if message.step_seconds == 123.0)
    assert told.resident_bytes == 2**40
    following.run(once=True)
    assert 0 < said[-1].step_seconds < 60


@pytest.mark.parametrize("training", [{"mode": "iteration", "iterations": 2}, {"mode": "epoch"}], ids=str)
def test_both_models_are_measured_and_what_was_is_kept(fleet, bundle, training):
    fleet.job(bundle, rounds=2, device_evaluation=2, training=training)
    assert fleet.client(holdout=0.4).run(rounds=2).rounds == 2
    fleet.ended()
    (event,) = fleet.told("evaluated")
    held_back = event.details["held_back"]
    assert 1 <= held_back < len(fleet.rows)
    known = {(one["round"], one["name"]): one["value"] for one in fleet.call("GET", "/v1/jobs/topics/metrics").json()}
    assert known[2, "evaluated"] == 1
    for whose in ("global", "personal"):
        name = f"accuracy_{whose}"
        assert known[2, name] == pytest.approx(event.details[f"right_{whose}"] / held_back)
        kept = fleet.state()["metrics"], fleet.call("GET", "/v1/jobs/topics/rounds").json()[0]["result"]
        assert [one[name] for one in kept] == [known[2, name]] * 2
    assert (1, "evaluated") not in known


def test_a_damaged_state_is_set_aside(fleet, bundle):
    fleet.job(bundle, rounds=2)
    fleet.client().run(rounds=1)
    for path in (fleet.folder / "home").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-3] + b"xxx")
    for path in (fleet.folder / "home").rglob("job.json"):
        path.write_bytes(b"{")
    assert fleet.client(token=False).run(rounds=1).rounds == 1
    assert any("was set aside" in event.message for event in fleet.told("warning"))


# --- what goes wrong ---


def test_data_that_does_not_fit_a_job_leaves_the_others(fleet, bundle, exported_once):
    other = fleet.upload(exported_once("two-labels", batches=(4,), labels=("good", "bad")))
    rows = [{**row, "label": "maybe"} for row in fleet.rows]
    fleet.job(other, name="unfit", rounds=1)
    fleet.job(bundle, name="fit", rounds=1)
    client = fleet.client(rows)
    assert client.run(rounds=1).rounds == 1
    assert not fleet.told("failed")
    (told,) = (event.message for event in fleet.told("warning") if "fit" in event.message)
    count = len(rows)
    why = f"{count} of {count} rows have a label that it does not know: 'maybe' ({count})"
    assert told == f"these rows do not fit unfit: {why}; its labels are good, bad"


def test_rows_that_fit_no_job_take_no_place(fleet, exported_once):
    """Before a bundle is fetched; the operator hears why, and rows that are corrected are looked at again."""
    path = fleet.folder / "my.jsonl"
    path.write_text("".join(json.dumps({**row, "label": "may\nbe"}) + "\n" for row in fleet.rows))
    fleet.job(fleet.upload(exported_once("two-labels", batches=(4,), labels=("good", "bad"))), rounds=1)
    done = fleet.client(path).run(once=True)
    assert (done.rounds, done.failures) == (0, 1)
    assert not fleet.told("task")
    assert not list((fleet.folder / "home").rglob("manifest.json"))
    count = len(fleet.rows)
    why = f"{count} of {count} rows have a label that it does not know: 'may\\nbe' ({count})"
    assert fleet.told("waiting")[-1].message.startswith(f"this device's rows do not fit topics: {why}")
    fleet.until(lambda: any(why in line for line in fleet.call("GET", "/v1/jobs/topics/advice").json()))
    path.write_text("".join(json.dumps({**row, "label": "good"}) + "\n" for row in fleet.rows))
    assert fleet.client(path, token=False).run(rounds=1).rounds == 1


def test_a_job_of_the_users_choice(fleet, bundle):
    fleet.job(bundle, name="first", rounds=1)
    fleet.job(bundle, name="second", rounds=1)
    fleet.client(job="second").run(rounds=1)
    assert "second" in fleet.told("task")[0].message
    done = fleet.client(job="third", token=False).run(once=True)
    assert (done.rounds, done.failures) == (0, 1)
    assert "'third' is not running" in fleet.told("waiting")[-1].message
    assert fleet.client(job="second", token=False).run(once=True).failures == 0, "one that has ended is no mistake"


def test_a_revoked_device_stops_and_keeps_what_it_has(fleet, bundle):
    fleet.job(bundle, rounds=2)
    client = fleet.client()
    client.run(rounds=1)
    device = fleet.told("enrolled")[0].details["device"]
    fleet.call("DELETE", f"/v1/devices/{device}")
    with pytest.raises(Unauthorized):
        fleet.client(token=False).run()
    assert client.predict(["it"])


def test_a_wrong_token(fleet):
    client = fleet.client(token=False)
    with pytest.raises(SpryError, match="is not enrolled"):
        client.run()
    client.token = "wrong"
    with pytest.raises(Unauthorized):
        client.run()


def test_no_data(fleet):
    with pytest.raises(DataError, match="no data to train on"):
        fleet.client(None).run()
    with pytest.raises(DataError, match="is empty"):
        fleet.client([]).run()
    with pytest.raises(DataError, match="holdout"):
        fleet.client(holdout=1.0)


def test_two_clients_do_not_share_a_home(fleet):
    first, second = fleet.client(), fleet.client()
    with first.store.locked(), pytest.raises(StoreError, match="another client uses"):
        second.run()


def test_memory_that_holds_no_program_gives_the_task_back(fleet, bundle, monkeypatch):
    from edge_client.errors import TrainingError

    def too_little(*_, **_options):
        raise TrainingError("the task needs 9 MB for its largest program")

    monkeypatch.setattr("edge_client.training.session.plan_for", too_little)
    fleet.job(bundle, rounds=1)
    assert fleet.client().run(once=True).failures == 1


def test_a_device_that_holds_one_program_at_a_time_says_so(fleet, bundle):
    fleet.job(bundle, rounds=1)
    client = fleet.client(conditions=Conditions(low_memory=True))
    assert client.run(rounds=1).rounds == 1
    fleet.until(lambda: fleet.call("GET", "/v1/devices").json()[0]["profile"])
    assert fleet.call("GET", "/v1/devices").json()[0]["profile"]["low_memory"] is True


def test_a_result_that_others_were_faster_than_is_no_failure(fleet, bundle):
    """Two are invited for the one update that is wanted; the second goes on with the next round, unpunished."""
    fleet.job(bundle, per_round=1, over_selection=2, rounds=2)
    slow, waits = list[Event](), list[float]()

    def overtake(event):
        slow.append(event)
        if event.kind == "task" and event.details["round"] == 1:
            fleet.client(home="fast").run(rounds=1)
            fleet.until(lambda: fleet.state()["done"] == 1)

    def pause(seconds):
        waits.append(seconds)
        fleet.pause(seconds)

    done = fleet.client(home="slow", on_event=overtake, pause=pause).run(rounds=1)
    assert (done.rounds, done.late, done.failures) == (1, 1, 0)
    (late,) = [event for event in slow if event.kind == "late"]
    assert "round 1 takes nothing more for this task (others were enough)" in late.message
    assert not [event for event in slow if event.kind == "refused"]
    assert max(waits) < FAILURE
    assert fleet.ended()["refused"] == {}


def test_skipped_rows_are_told(fleet, bundle):
    fleet.job(bundle, rounds=1)
    path = fleet.folder / "my.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in fleet.rows) + "nonsense\n")
    with pytest.raises(DataError, match=r"my.jsonl, line 8: is not JSON"):
        fleet.client(path).run()
    fleet.client(path, bad_rows="skip").run(rounds=1)
    assert "rows left out: line 8: is not JSON" in fleet.told("warning")[-1].message


def test_rows_that_the_job_cuts_are_told_once_with_their_number(fleet, bundle):
    fleet.job(bundle, rounds=2)
    room = fleet.state()["settings"]["training"]["length"]
    rows = [{"text": "it is " * (room if number % 3 == 0 else 1), "label": number % 3} for number in range(12)]
    fleet.client(rows).run(rounds=2)
    told = [event.message for event in fleet.told("warning")]
    assert len(told) == 1
    assert f"have more than the {room} tokens that the job reads" in told[0]
    long, looked = int(told[0].split()[0]), int(told[0].split()[2])
    assert 0 < long < looked <= 12


def test_prediction_needs_a_job(fleet):
    with pytest.raises(StoreError, match="holds no job yet"):
        fleet.client().predict(["it"])
    assert fleet.client().predict([]) == []


def test_a_device_that_a_runtime_does_not_know_is_refused_at_once():
    with pytest.raises(SpryError, match="nothing here runs on cuda: onnx use the CPU alone; install a torch"):
        Client("http://127.0.0.1:9", "t", ROWS, runtime="onnx", device="cuda")
    assert chosen("torchscript", "cuda") == ["torchscript"]


def test_a_crash_in_the_middle_of_a_task_reaches_the_operator_and_ends_no_client(fleet, bundle):
    fleet.job(bundle, per_round=2)

    def crash(event):
        fleet.events.append(event)
        if event.kind == "progress":
            raise RuntimeError("the runtime broke " + "x" * 600)

    done = fleet.client(on_event=crash).run(once=True)
    assert (done.rounds, done.failures) == (0, 1)
    (failed,) = fleet.told("failed")
    assert "RuntimeError: the runtime broke" in failed.message
    assert "Traceback" in failed.details["traceback"]
    assert "in crash" in failed.details["traceback"]
    (told,) = fleet.call("GET", "/v1/jobs/topics/refusals").json()
    assert told["code"] == "failed"
    assert told["detail"].startswith("RuntimeError: the runtime broke")

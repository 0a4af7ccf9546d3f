"""Rounds whose devices add their updates in secret, through the real application, stage by stage."""

import httpx
import numpy as np
import pytest

from edge_client import keys
from edge_client.client.secure_sum import Adding
from edge_client.errors import ServerError, SpryError
from edge_client.secagg.adding import changes
from edge_client.secagg.fixed import scale
from edge_client.store.job import JobStore
from edge_client.wire.proofs import Signing, enrolment
from edge_client.wire.protocol import CheckIn, Report
from edge_client.wire.server import Server as Wire
from server.storage.jobs import find_job

AVERAGE = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
ADDRESS = "http://127.0.0.1:1"


class Through(httpx.BaseTransport):
    """Requests that the application answers in this process."""

    def __init__(self, http):
        self.http = http

    def handle_request(self, request):
        answer = self.http.request(
            request.method, str(request.url.raw_path, "ascii"), content=request.read(), headers=request.headers.raw
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


class Device:
    """One with a key of its own; its training is a change that the test chooses."""

    def __init__(self, server, folder, number):
        self.key = keys.make()
        self.job = JobStore(folder / f"device{number}")
        self.job.folder.mkdir(parents=True)
        self.connect(server)
        self.wire.identity = self.wire.enrol(enrolment(server.token(), f"pi{number}", "", self.key))
        self.identity = self.wire.identity
        self.wire.signing = Signing(self.identity.device, self.key, ADDRESS)
        self.adding = None

    def connect(self, server):
        """To the server, or to one that goes on in its place."""
        self.wire = Wire(ADDRESS, transport=Through(server.http), patience=0, pause=lambda _: None)
        if hasattr(self, "identity"):
            self.wire.identity = self.identity
            self.wire.signing = Signing(self.identity.device, self.key, ADDRESS)

    def task(self, **said):
        offered = {"sums": True, "adds_noise": True} | said
        answer = self.wire.check_in(CheckIn(["onnx"], examples=64, **offered))
        assert answer.task, answer.reason
        return answer.task

    def train(self, server, change, examples=8, **report):
        """Take a task, have its update ready, and say so."""
        task = self.task()
        manifest = server.store.bundles.manifest(task.bundle)
        start = server.store.models.load(find_job(server.store, task.job), task.version).weights
        own = {name: value + np.float32(change) for name, value in start.items()}
        self.job.begin(task)
        said = Report(examples, 4, **({"loss": 1.0} | report))
        self.job.save_update(changes(manifest, task.sum.units, own, start), said)
        self.begin()
        return task

    def begin(self):
        """As a process does that has just started, on what it kept."""
        task = self.job.task()
        self.adding = Adding(task, self.wire, self.job, self.key, lambda _: None, lambda _: None)
        self.adding.begin()

    def step(self):
        return self.adding.step()


@pytest.fixture
def job(server, bundle_name):
    def create(**settings):
        values = {"per_round": 4, "over_selection": 1, "units_per_client": 0, "optimizers": AVERAGE}
        made = server.create_job(bundle_name, secure_aggregation=True, **(values | settings))
        server.advance()
        return made

    return create


def play(server, devices, *, until="over"):
    """Everybody looks and speaks, stage by stage, until a sum is there."""
    for _ in range(20):
        server.advance()
        if stage_of(server) == until:
            return
        for device in devices:
            device.step()
    raise AssertionError(stage_of(server))


def stage_of(server):
    from server.storage.work import rounds, sums

    with server.store.database.read() as connection:
        newest = [one for one in rounds.newest_first(connection, server.job()["id"], None, 5) if one.started]
        standing = sums.find(connection, newest[0])
    if newest[0].state in ("done", "failed"):
        return "over"
    return standing.stage if standing else "card"


def rounds_of(server):
    return server.call("GET", "/v1/jobs/job/rounds").json()


def head_of(server, job="job"):
    found = find_job(server.store, job)
    head = server.store.bundles.manifest(found.bundle).head[0].name
    return server.store.models.load(found, found.version).weights[head]


def test_a_sum_is_the_mean_by_examples_and_all_else_is_gone(server, job, devices, bundle_name):
    job()
    four = devices(4)
    before = head_of(server)
    for device, change, examples in zip(four, (0.1, 0.2, 0.4, -0.3), (1, 2, 5, 8), strict=True):
        device.train(server, change, examples, held_back=2, right_global=1, right_personal=2)
    progress = server.job()["progress"]
    assert (progress["training"], progress["reported"]) == (0, 4), "updates that are ready count as reported"
    play(server, four)
    expected = (0.1 + 0.4 + 2.0 - 2.4) / 16
    np.testing.assert_allclose(head_of(server) - before, expected, atol=20 / scale(4))
    metrics = server.job()["metrics"]
    assert (metrics["reports"], metrics["examples"], metrics["evaluated"]) == (4, 16, 4)
    assert (metrics.get("accuracy_global"), metrics["accuracy_personal"]) == (None, 1.0), "nobody trained it before"
    assert metrics["loss"] == pytest.approx(1.0, abs=1e-4)
    assert [device.step() is not None for device in four] == [True] * 4, "nothing more is asked of anybody"
    assert server.job()["sees"] == "sums of at least 3 devices"
    from sqlalchemy import func, select

    from server.storage.schema.tables import summands, sums, tasks

    with server.store.database.read() as connection:
        for table in (summands, sums):
            assert connection.scalar(select(func.count()).select_from(table)) == 0
        assert connection.execute(select(tasks.c.update, tasks.c.report)).all() == [(None, None)] * 4


def test_one_that_vanishes_after_its_shares_is_left_out_of_the_sum(server, job, devices):
    job(minimum=3)
    *three, gone = devices(4)
    before = head_of(server)
    for device in (*three, gone):
        device.train(server, 0.2 if device is not gone else 2.0)
    play(server, [*three, gone], until="update")
    for device in three:
        device.step()
    server.advance()
    assert stage_of(server) == "update", "the fourth is waited for"
    server.store.now = lambda now=server.store.now: now() + 61
    play(server, three)
    assert rounds_of(server)[-1]["state"] == "done", rounds_of(server)
    np.testing.assert_allclose(head_of(server) - before, 0.2, atol=1e-5)
    with pytest.raises(ServerError, match=r"late|takes nothing more"):
        gone.step()


def test_one_that_a_sum_goes_on_without_is_free_for_others(server, job, devices):
    """Given the same task again it would come too late again."""
    job(minimum=3)
    *three, gone = devices(4)
    for device in (*three, gone):
        device.train(server, 0.1)
    play(server, [*three, gone], until="shares")
    for device in three:
        device.step()
    server.store.now = lambda now=server.store.now: now() + 61
    server.advance()
    assert stage_of(server) == "update"
    with pytest.raises(ServerError, match="goes on without this device"):
        gone.step()
    answer = gone.wire.check_in(CheckIn(["onnx"], sums=True))
    assert answer.task is None
    assert server.job()["refused"] == {}
    play(server, three)
    assert rounds_of(server)[-1]["state"] == "done"


def test_one_that_vanishes_after_its_update_is_in_the_sum(server, job, devices):
    job()
    *three, gone = devices(4)
    before = head_of(server)
    for device, change in zip((*three, gone), (0.1, 0.1, 0.1, 0.5), strict=True):
        device.train(server, change)
    play(server, [*three, gone], until="vow")
    play(server, three)
    np.testing.assert_allclose(head_of(server) - before, 0.2, atol=1e-5)


def test_who_could_still_join_a_sum_is_waited_for(server, job, devices):
    """By what devices say of themselves when they check in."""
    *three, fourth = devices(4)
    assert fourth.wire.check_in(CheckIn(["onnx"], sums=True)).task is None, "there is no job yet"
    server.http.app.state.services.offers.save_profiles()
    job(minimum=3)
    for device in three:
        device.train(server, 0.1)
    server.store.now = lambda now=server.store.now: now() + 2.5 * server.store.settings.retry_seconds
    server.advance()
    assert stage_of(server) == "card"
    fourth.train(server, 0.1)
    server.advance()
    assert stage_of(server) == "shares"


def test_an_opening_that_comes_while_the_sum_is_being_opened_is_no_failure(server, job, devices):
    """The others' were enough."""
    from server.rounds.claims import claim
    from server.storage.work import rounds

    job()
    four = devices(4)
    for device in four:
        device.train(server, 0.1)
    play(server, four, until="opening")
    with server.store.database.read() as connection:
        newest = rounds.newest(connection, server.job()["id"])
    assert claim(server.store, newest) is not None
    assert four[0].step() is None
    assert server.job()["refused"] == {}


def test_with_fewer_than_the_minimum_the_round_begins_anew_with_a_reason(server, job, devices):
    job(per_round=3, deadline=50)
    *two, gone = devices(3)
    for device in (*two, gone):
        device.train(server, 0.1)
    play(server, [*two, gone], until="update")
    for device in two:
        device.step()
    server.store.now = lambda now=server.store.now: now() + 61
    play(server, [])
    newest, failed = rounds_of(server)
    assert (failed["state"], newest["state"], newest["number"]) == ("failed", "open", 2)
    assert failed["result"]["reason"] == "2 of 3 devices sent an update in time: too few of some unit"
    assert failed["tasks"] == {"spare": 3}, "their keys were there in time: nobody is to wait for it"
    assert server.job()["version"] == 0


@pytest.mark.parametrize(
    ("stage", "database"),
    [*((stage, "sqlite") for stage in ("card", "shares", "update", "vow", "opening")), ("update", "postgresql")],
    indirect=["database"],
)
def test_a_sum_goes_on_after_server_and_devices_were_killed(serving, tmp_path, bundle, stage, database):
    """At every stage: another process has the same folder and database, and devices what they kept."""
    with serving(**database) as first:
        name = first.upload(bundle)
        first.create_job(name, secure_aggregation=True, per_round=3, over_selection=1, units_per_client=0,
                         optimizers=AVERAGE)  # fmt: skip
        first.advance()
        before = head_of(first)
        three = [Device(first, tmp_path / "homes", number) for number in range(3)]
        for device, change in zip(three, (0.1, 0.3, 0.5), strict=True):
            device.train(first, change)
        if stage != "card":
            play(first, three, until=stage)
            three[0].step()
    with serving(**database) as second:
        for device in three:
            device.connect(second)
            device.begin()
        play(second, three)
        np.testing.assert_allclose(head_of(second) - before, 0.3, atol=1e-5)


def test_units_are_dealt_out_to_teams(server, job, devices):
    """With devices enough for two teams each has half of the units, and the head is of all."""
    job(per_round=10, units_per_client=1)
    ten = devices(10)
    start = {n: v.copy() for n, v in server.store.models.load(find_job(server.store, "job"), 0).weights.items()}
    tasks = [device.train(server, 0.1 * (number + 1)) for number, device in enumerate(ten)]
    sets = [tuple(task.sum.units) for task in tasks]
    assert [sets.count(one) for one in dict.fromkeys(sets)] == [5, 5]
    play(server, ten)
    found = find_job(server.store, "job")
    moved = server.store.models.load(found, found.version).weights
    manifest = server.store.bundles.manifest(found.bundle)
    np.testing.assert_allclose(moved[manifest.head[0].name] - start[manifest.head[0].name], 0.55, atol=1e-5)
    for units, mean in zip(dict.fromkeys(sets), (0.3, 0.8), strict=True):
        for unit in units:
            for parameter in manifest.units[unit].parameters:
                np.testing.assert_allclose(moved[parameter.name] - start[parameter.name], mean, atol=1e-5)


def test_units_of_too_few_holders_are_left_out_with_the_reason(server, job, devices):
    job(per_round=10, units_per_client=1, deadline=5, minimum=3)
    seven = devices(7)
    tasks = [device.train(server, 0.1) for device in seven]
    few = [device for device, task in zip(seven, tasks, strict=True) if task.sum.units != tasks[0].sum.units]
    many = [device for device in seven if device not in few]
    assert (len(many), len(few)) == (5, 2)
    server.store.now = lambda now=server.store.now: now() + 6
    server.advance()
    with pytest.raises(ServerError, match=r"fewer than 3 holders \(min_holders\)"):
        few[0].step()
    play(server, many)
    assert server.job()["metrics"]["reports"] == 5


def test_a_sum_that_goes_too_far_is_not_taken(server, job, devices):
    job(per_round=3, norm_bound=2)
    for change in (0.01, 0.01, 0.01, 1.0):
        three = devices(3)
        for device in three:
            device.train(server, change)
        play(server, three)
    assert [one["state"] for one in reversed(rounds_of(server))][:4] == ["done", "done", "done", "failed"]
    assert (
        "the sum is not taken: its" in next(o for o in rounds_of(server) if o["state"] == "failed")["result"]["reason"]
    )


def test_a_device_without_a_key_is_given_nothing(server, job):
    job()
    reason = server.device().check_in(sums=False)["reason"]
    assert "job uses secure aggregation, for which this device needs a key of its own" in reason


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def one(server, job, devices):
    job()
    (device,) = devices(1)
    device.train(server, 0.1)
    return device


def refused(device, message, data, match):
    with pytest.raises(ServerError, match=match) as error:
        device.wire.send_message(device.job.task().id, message, data)
    return error.value


def test_a_card_of_another_version_is_refused(server, job, devices):
    job()
    (device,) = devices(1)
    task = device.task()
    device.job.begin(task)
    refused(device, "card", bytes(128), "its key of the round has 128 bytes, not 32: upgrade spry on the device")
    assert server.job()["refused"]["invalid"] >= 1


def test_another_card_and_messages_of_other_stages_are_refused(one):
    assert refused(one, "card", bytes(32), "another card of this task was accepted before").code == "stale"
    assert refused(one, "opening", bytes(33), "takes no opening of this device: its sum is at card").code == "late"
    assert one.wire.send_message(one.job.task().id, "card", one.adding._member.card()).repeated


def test_shares_of_another_length_are_refused(server, one, devices):
    three = devices(3)
    for device in three:
        device.train(server, 0.1)
    server.advance()
    assert refused(one, "shares", bytes(5), "its shares has 5 bytes, not 128").code == "invalid"


def test_a_plain_jobs_task_takes_no_messages(server, bundle_name, devices):
    server.create_job(bundle_name, per_round=1)
    server.advance()
    (device,) = devices(1)
    task = device.task()
    assert task.sum is None
    with pytest.raises(ServerError, match="has no secure aggregation"):
        device.wire.send_message(task.id, "card", bytes(128))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"training": {"mode": "iteration"}}, "secure_aggregation needs mode epoch"),
        ({"aggregation": "clipped"}, "aggregation clipped compares single updates"),
        ({"per_round": 2}, "min_holders is 3, more than per_round 2"),
        ({"min_holders": 2}, "greater than or equal to 3"),
        ({"per_round": 5000, "over_selection": 1}, "a sum has room for 4096 devices, not 5000"),
    ],
)
def test_settings_that_sums_cannot_be_had_with_are_refused(server, bundle_name, settings, reason):
    body = {"name": "job", "bundle": bundle_name, "settings": {"secure_aggregation": True, **settings}}
    assert reason in server.call("POST", "/v1/jobs", 422, json=body).text


def test_a_device_that_wants_sums_alone_is_offered_nothing_else(server, bundle_name, devices):
    server.create_job(bundle_name, per_round=1)
    server.advance()
    (device,) = devices(1)
    answer = device.wire.check_in(CheckIn(["onnx"], examples=64, sums=True, only_sums=True))
    assert answer.task is None
    assert "job shows updates to its server, and this device takes part only in sums" in answer.reason
    assert device.task().sum is None


def test_a_device_that_wants_sums_alone_sends_nothing_else(tmp_path):
    from types import SimpleNamespace

    from edge_client.client.client import Client

    client = Client(ADDRESS, data=[{"text": "a", "label": 0}], home=tmp_path, only_sums=True)
    with pytest.raises(SpryError, match="this device joined with --only-sums"):
        client._attempts.take_part(SimpleNamespace(sum=None, job_name="job"), JobStore(tmp_path))
    client.close()

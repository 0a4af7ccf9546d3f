"""Private jobs whose devices add the noise, through the real application: what is published, and what it costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import delete

from edge_client.errors import TrainingError
from edge_client.secagg.member import Kept
from edge_client.secagg.noise import ROOM
from edge_client.wire.protocol import CheckIn
from server.storage.identities import participations
from server.storage.jobs import find_job
from server.storage.schema.tables import summands
from tests.server.rounds.secrecy.test_summing import AVERAGE, play, rounds_of, stage_of

NOISE, CLIP, LEAST = 2.0, 0.05, 4
PRIVATE = {
    "privacy_noise": NOISE, "privacy_clip": CLIP, "min_holders": LEAST, "secure_aggregation": True, "per_round": 6,
    "over_selection": 1, "minimum": 4, "units_per_client": 0, "optimizers": AVERAGE, "rounds": 9,
}  # fmt: skip


@pytest.fixture
def job(server, bundle_name):
    def create(**settings):
        made = server.create_job(bundle_name, **PRIVATE | settings)
        server.advance()
        return made

    return create


def weights(server):
    found = find_job(server.store, "job")
    return dict(server.store.models.load(found, found.version).weights)


def times(server):
    with server.store.database.read() as connection:
        return participations.most(connection, find_job(server.store, "job").id)


def train(server, devices, change=0.0):
    for device in devices:
        device.train(server, change)


def mean_noise(server, before, change, there):
    """Return what the weights moved by beside what so many devices, each clipped, moved them by."""
    after = weights(server)
    moved = np.concatenate([(after[name] - before[name]).ravel() for name in sorted(before)]).astype(np.float64)
    length = abs(change) * math.sqrt(len(moved))
    kept = change * min(1, CLIP / length) if length else 0.0
    return moved - there * kept / PRIVATE["per_round"]


@pytest.mark.parametrize("there", [6, 5])
def test_the_weights_have_the_noise_of_all_that_are_in_the_sum(server, job, devices, there):
    """Of six one vanishes when its shares are dealt, and its noise with it; the others' is enough."""
    job()
    six = devices(6)
    before = weights(server)
    train(server, six, change=0.01)
    play(server, six, until="update")
    here = six[:there]
    for device in here:
        device.step()
    server.store.now = lambda now=server.store.now: now() + 61
    play(server, here)
    noise = mean_noise(server, before, 0.01, there)
    assert len(noise) > 100
    one = NOISE * CLIP / PRIVATE["per_round"]
    likely = 5.5 / math.sqrt(2 * len(noise))
    assert noise.std() == pytest.approx(one * (1 + ROOM) * math.sqrt(there / (LEAST - 1)), rel=likely)
    assert abs(noise.mean()) < 5.5 * noise.std() / math.sqrt(len(noise))
    assert server.job()["metrics"]["reports"] == there
    told = server.call("GET", "/v1/jobs/job/metrics").json()
    assert {name["name"] for name in told} == {"reports", "refused", "seconds", "epsilon"}, "no loss, no examples"


def test_epsilon_is_that_of_the_noise_that_is_counted(server, job, devices):
    """By the formula of one normal sum (Balle and Wang, 2018), not by the noise that six shares come to."""
    job()
    six = devices(6)
    for _ in range(2):
        train(server, six)
        play(server, six)
    found = server.job()["metrics"]["epsilon"]
    mu = math.sqrt(2) / NOISE
    delta = _below(mu / 2 - found / mu) - math.exp(found) * _below(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert server.job()["sees"] == "sums of at least 4 devices, with the noise of each in them"


def _below(value):
    return 0.5 * math.erfc(-value / math.sqrt(2))


def test_nothing_that_is_stored_gives_a_sum_without_noise(server, job, devices):
    """Neither the secrets that noise comes of nor the sum of the changes can be had of all that the server has."""
    job(per_round=4)
    four = devices(4)
    before = weights(server)
    train(server, four, change=0.01)
    play(server, four, until="opening")
    for device in four[:-1]:
        device.step()
    secrets = [device.adding._member.noise for device in four]
    opened = [device.adding._member._seed for device in four]
    kept = b"".join(path.read_bytes() for path in server.store.settings.data_dir.rglob("*") if path.is_file())
    four[-1].step()
    assert all(len(secret) == 32 and secret not in kept and secret not in opened for secret in secrets)
    play(server, [])
    noise = mean_noise(server, before, 0.01, 4)
    assert noise.std() > 0.5 * NOISE * CLIP / 4


def test_a_device_that_starts_again_sends_the_same_bytes(server, job, devices, monkeypatch):
    """Two versions of one update, with other noise, would be worth more than one."""
    job()
    six = devices(6)
    train(server, six, change=0.01)
    play(server, six, until="update")
    sent, first = [], six[0]
    send = first.wire.send_masked
    monkeypatch.setattr(first.wire, "send_masked", lambda task, data: sent.append(data) or send(task, data))
    for _ in range(3):
        first.begin()  # a new process, on what was kept
        first.step()
    assert len(sent) == 3
    assert len(set(sent)) == 1
    play(server, six)
    assert rounds_of(server)[-1]["state"] == "done"


def test_a_server_that_changes_the_noise_of_a_round_is_refused(server, job, devices):
    job()
    (device,) = devices(1)
    task = device.train(server, 0.01)
    device.job.begin(replace(task, sum=replace(task.sum, noise=NOISE / 100)))
    with pytest.raises(TrainingError, match="the server sent another terms of the same round before"):
        device.begin()
    device.job.begin(replace(task, clip=None))
    with pytest.raises(TrainingError, match="the task asks for noise and names no clip"):
        device.begin()


def test_devices_that_are_told_other_noise_cannot_read_each_other(server, job, devices):
    job(per_round=4)
    four = devices(4)
    train(server, four[:3])
    deceived = four[3]
    task = deceived.train(server, 0.0)
    with server.store.database.write() as connection:  # it says nothing under the true terms
        connection.execute(delete(summands).where(summands.c.task == task.id))
    deceived.job.save_sum(Kept())
    deceived.job.begin(replace(task, sum=replace(task.sum, noise=NOISE / 2)))
    deceived.begin()
    with pytest.raises(TrainingError, match="place 3 got other keys or shares"):
        play(server, four)


def test_who_may_open_a_sum_has_paid_though_the_round_fails(server, job, devices):
    """The server could have opened it, and the next is another sum of the same devices."""
    job(per_round=4, privacy_times=1, privacy_epsilon=9)
    four = devices(4)
    train(server, four)
    play(server, four, until="vow")
    assert times(server) == 0
    play(server, four, until="opening")
    assert times(server) == 1
    server.store.now = lambda now=server.store.now: now() + 61
    play(server, [])
    failed = next(one for one in rounds_of(server) if one["state"] == "failed")
    assert "devices were there to open the sum" in failed["result"]["reason"]
    assert times(server) == 1
    told = server.job()
    assert (told["state"], told["done"]) == ("ended", 0)
    assert "its privacy budget is spent: 4 devices have taken part 1 time" in told["reason"]


def test_a_round_that_is_published_is_paid_once(server, job, devices):
    job(per_round=4)
    four = devices(4)
    train(server, four)
    play(server, four)
    assert stage_of(server) == "over"
    assert times(server) == 1


def test_a_device_that_would_add_no_noise_is_given_nothing(server, job, devices):
    job()
    (device,) = devices(1)
    answer = device.wire.check_in(CheckIn(["onnx"], examples=64, sums=True))
    assert "job wants devices to add noise to their updates, for which this one needs a newer spry" in answer.reason


def test_a_device_refuses_to_weigh_less_than_another(server, job, devices, monkeypatch):
    from server.rounds.secrecy import summing

    monkeypatch.setattr(summing, "_cap", lambda *_: 7)
    job(per_round=4)
    four = devices(4)
    train(server, four)
    with pytest.raises(TrainingError, match="let a device weigh 7 times as much as another, in a private sum"):
        play(server, four)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"privacy_quantile": 0.5}, "secure_aggregation shows the server none: leave out privacy_quantile"),
        (
            {"privacy_noise": 0.01, "rounds": 1, "per_round": 4000, "min_holders": 3500},
            "the integers of 4000 devices are too coarse for updates of",
        ),
    ],
)
def test_what_shares_cannot_be_had_with_is_refused(server, bundle_name, settings, said):
    training = {"training": {"batch": 2, "length": 8}}
    body = {"name": "job", "bundle": bundle_name, "settings": {**PRIVATE, **training, **settings}}
    answer = server.http.post("/v1/jobs", json=body, headers=server.admin)
    assert answer.status_code == 422
    assert said in answer.text

"""Private jobs through the real application: what is averaged, what it costs, what is told, and when it ends."""

import time

import numpy as np
import pytest

from edge_client.bundle.names import CLIP
from server.privacy.accountant import epsilon_of, noise_for
from server.rounds import claims, rounds
from server.rounds.outcome.outcomes import aggregate
from server.storage.identities import participations
from server.storage.jobs import find_job
from server.storage.work import assignments
from tests.server.rounds.test_rounds import AVERAGE, play

FAINT = 1e-3
"""Noise that hides nothing, so that the mean can be read."""


def private(server, bundle_name, **settings):
    told = {"per_round": 2, "over_selection": 1, "optimizers": AVERAGE, "assignment": "all", "rounds": 20}
    made = server.create_job(bundle_name, **told | settings)
    server.advance()
    return made


def times(server):
    with server.store.database.read() as connection:
        job = find_job(server.store, "job").id
        ids = [device["id"] for device in server.call("GET", "/v1/devices").json()]
        return {device: participations.of(connection, job, device) for device in ids}


def test_all_count_the_same_up_to_the_clip(server, bundle_name):
    private(server, bundle_name, privacy_noise=FAINT, privacy_clip=0.01)
    devices = [server.device() for _ in range(2)]
    before = devices[0].weights("job")
    count = sum(value.size for value in before.values())
    short = 0.001 / count**0.5
    play(server, devices, [short, -1e6], examples=[1, 500])  # the second goes as far as the clip, and no further
    after = devices[0].weights("job")
    moved = np.concatenate([(after[name] - before[name]).ravel() for name in sorted(before)])
    np.testing.assert_allclose(moved, (short - 0.01 / count**0.5) / 2, atol=5 * FAINT * 0.01)
    assert server.job()["refused"] == {}


def test_noise_is_laid_on_and_is_never_the_same(server, bundle_name):
    private(server, bundle_name, privacy_noise=3.0, privacy_clip=0.02)
    devices = [server.device() for _ in range(2)]
    start = devices[0].weights("job")
    moves = []
    for _ in range(2):
        before = devices[0].weights("job")
        play(server, devices, [0.0, 0.0])
        after = devices[0].weights("job")
        moves.append(np.concatenate([(after[name] - before[name]).ravel() for name in sorted(start)]))
    deviation = 3.0 * 0.02 / 2
    for one in moves:
        assert one.std() == pytest.approx(deviation, rel=5 / len(one) ** 0.5 + 0.01)
    assert abs(np.corrcoef(*moves)[0, 1]) < 5 / len(moves[0]) ** 0.5


def test_devices_are_told_the_clip_and_nothing_else_is_asked_or_kept(server, bundle_name):
    private(server, bundle_name, privacy_noise=1.0, privacy_clip=0.25, held_out=None)
    device, other = server.device(), server.device()
    task = device.task()
    assert (task["clip"], task["evaluate"], task["measure"]) == (0.25, False, False)
    said = {"loss": 7.5, "held_back": 4, "right_global": 3, "right_personal": 2}
    device.send(task, device.update(task, 0.0, examples=6, **said))
    again = other.task()
    other.send(again, other.update(again, 0.0))
    server.advance()
    told = server.call("GET", "/v1/jobs/job/metrics").json()
    assert {one["name"] for one in told} == {"reports", "refused", "seconds", "epsilon"}
    parts = server.call("GET", f"/v1/devices/{device.id}").json()["parts"]
    assert [(part["loss"], part["examples"]) for part in parts] == [(0.0, 1)]


def test_the_clip_follows_and_is_kept_with_the_weights(server, bundle_name):
    private(server, bundle_name, privacy_noise=0.01, privacy_clip=1.0, privacy_quantile=0.5)
    devices = [server.device() for _ in range(2)]
    clips = []
    for _ in range(3):
        tasks = play(server, devices, [0.0, 0.0])
        clips.append(tasks[0]["clip"])
    assert clips[0] == 1.0 > clips[1] > clips[2]
    job = find_job(server.store, "job")
    assert server.store.models.load(job, 3).clip < clips[2]
    assert CLIP not in devices[0].weights("job")


def test_noise_is_chosen_for_a_budget_and_epsilon_is_that_of_who_came_most(server, bundle_name):
    made = private(server, bundle_name, privacy_epsilon=6.0, privacy_times=4)["settings"]
    assert made["privacy_noise"] == pytest.approx(noise_for(6.0, 1e-5, 4))
    one, two, three = (server.device() for _ in range(3))
    for pair in ((one, two), (one, three), (one, two)):
        play(server, pair, [0.0, 0.0])
    assert times(server) == {one.id: 3, two.id: 2, three.id: 1}
    assert server.job()["metrics"]["epsilon"] == pytest.approx(epsilon_of(made["privacy_noise"], 1e-5, 3))
    metrics = server.http.get("/metrics").text
    assert 'spry_job{job="job",metric="epsilon"}' in metrics


def test_a_device_that_has_paid_all_gets_no_part_and_the_job_ends_when_too_few_are_left(server, bundle_name):
    private(server, bundle_name, privacy_epsilon=6.0, privacy_times=2, minimum=2)
    one, two, three = (server.device() for _ in range(3))
    play(server, (one, two), [0.0, 0.0])
    play(server, (one, three), [0.0, 0.0])
    answer = one.check_in()
    assert answer["task"] is None
    assert "had this device 2 times, as often as its privacy budget allows" in answer["reason"]
    assert server.job()["state"] == "running"
    play(server, (two, three), [0.0, 0.0])
    job = server.job()
    assert (job["state"], job["done"]) == ("ended", 3)
    assert "its privacy budget is spent: 3 devices have taken part 2 times, epsilon 6.00" in job["reason"]


def test_noise_and_budget_say_how_often_a_device_may_come(server, bundle_name):
    made = private(server, bundle_name, privacy_epsilon=8.0, privacy_noise=noise_for(8.0, 1e-5, 3) * 1.01)["settings"]
    assert made["privacy_times"] == 3


def test_a_round_that_two_close_is_paid_and_published_once(server, bundle_name, monkeypatch):
    """The first was too slow, as one that was killed: each draws noise of its own, and one of both is published."""
    monkeypatch.setattr(claims, "LEASE", 0.3)
    private(server, bundle_name, privacy_noise=2.0, privacy_clip=0.1)
    devices = [server.device() for _ in range(2)]
    before = devices[0].weights("job")
    for device, task in [(device, device.task()) for device in devices]:
        device.send(task, device.update(task, 0.0))
    job = find_job(server.store, "job")
    with server.store.database.read() as connection:
        round_ = rounds.rounds.newest(connection, job.id)
        reported = assignments.accepted(connection, round_)
    drawn = aggregate(server.store, job, round_, reported).change
    slow = claims.claim(server.store, round_)
    time.sleep(0.5)
    other = claims.claim(server.store, round_)
    with slow:
        rounds._finish(server.store, job, round_, slow)
    assert times(server) == {device.id: 0 for device in devices}
    with other:
        rounds._finish(server.store, job, round_, other)
    assert times(server) == {device.id: 1 for device in devices}
    after = devices[0].weights("job")
    name = min(before)
    assert server.job()["version"] == 1
    assert not np.allclose(after[name] - before[name], drawn[name], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"training": {"mode": "iteration"}}, "need mode epoch"),
        ({"aggregation": "median"}, "needs aggregation mean, got median"),
        ({"device_evaluation": 1}, "leave out device_evaluation"),
    ],
)
def test_what_no_budget_pays_for_is_refused(server, bundle_name, settings, said):
    body = {"name": "job", "bundle": bundle_name, "settings": {"privacy_epsilon": 8, **settings}}
    assert said in server.call("POST", "/v1/jobs", 422, json=body).text


def test_noise_that_spends_a_budget_at_once_is_refused(server, bundle_name):
    settings = {"privacy_epsilon": 1.0, "privacy_noise": 0.5, "training": {"batch": 2, "length": 8}}
    body = {"name": "job", "bundle": bundle_name, "settings": settings}
    answer = server.http.post("/v1/jobs", json=body, headers=server.admin)
    assert answer.status_code == 422
    assert "spends an epsilon of" in answer.text

"""More rounds for a job that is there."""

import pytest

from tests.server.rounds.test_rounds import AVERAGE, play


@pytest.fixture
def ended(server, bundle_name):
    """A server whose job has done its two rounds, and its devices."""
    server.create_job(bundle_name, per_round=2, over_selection=1, rounds=2, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(2)]
    for _ in range(2):
        play(server, devices, [0.1, 0.1])
    assert server.job()["state"] == "ended"
    return server, devices


def extend(server, status=200, **wanted):
    return server.call("POST", "/v1/jobs/job/extend", status, json=wanted).json()


def test_a_job_that_ended_with_its_rounds_goes_on_with_what_it_learned(ended):
    server, devices = ended
    told = extend(server, rounds=3)
    assert (told["state"], told["ended"], told["version"], told["settings"]["rounds"]) == ("running", None, 2, 3)
    server.advance()
    play(server, devices, [0.1, 0.1])
    job = server.job()
    assert (job["state"], job["done"], job["version"]) == ("ended", 3, 3)


@pytest.mark.parametrize(
    ("rounds", "problem"), [(1, "job job has 2 rounds, got 1"), (2, "would end again at once (2 rounds are done)")]
)
def test_what_gives_no_more_rounds_is_refused(ended, rounds, problem):
    assert problem in extend(ended[0], 409, rounds=rounds)["detail"]


def test_a_job_that_somebody_stopped_does_not_go_on(server, bundle_name):
    server.create_job(bundle_name, per_round=2, over_selection=1, rounds=2, optimizers=AVERAGE)
    server.call("POST", "/v1/jobs/job/stop")
    assert "has ended (stopped by an administrator); create another" in extend(server, 409, rounds=9)["detail"]


def test_a_private_job_has_the_rounds_that_its_noise_was_chosen_for(server, bundle_name):
    server.create_job(bundle_name, per_round=2, rounds=2, privacy_noise=1.0, optimizers=AVERAGE)
    assert "chosen for all of its rounds" in extend(server, 409, rounds=9)["detail"]


def test_patience_without_an_accuracy_is_refused(ended):
    assert "target and patience need an accuracy" in extend(ended[0], 422, rounds=9, patience=3)["detail"]

"""Clients that add their updates in secret, through the real application."""

import threading
import time

import numpy as np
import pytest

AVERAGE = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
SETTINGS = {
    "per_round": 4, "over_selection": 1, "units_per_client": 0, "rounds": 1, "optimizers": AVERAGE,
    "measure_features": False, "device_evaluation": 1, "seed": 11, "minimum": 4,
}  # fmt: skip


@pytest.fixture
def clients(fleet):
    """Two have as many rows as any: what one alone has more is bounded, by what it declares in a sum."""
    rows = [fleet.rows[start:] + fleet.rows[: start + 1] for start in range(4)]
    return [
        fleet.client(rows[n][: 4 + min(n, 2)], home=f"home{n}", holdout=0.25, name=f"pi{n}", pause=pause)
        for n in range(4)
    ]


def pause(seconds):
    time.sleep(min(seconds, 0.05))


def weights_of(fleet, job):
    store = fleet.app.state.services.store
    from server.storage.jobs import find_job

    found = find_job(store, job)
    return store.models.load(found, found.version).weights


def test_a_sum_gives_the_weights_of_a_plain_mean(fleet, trainable, clients, monkeypatch):
    bundle = fleet.upload(trainable)
    fleet.job(bundle, "plain", **SETTINGS)
    seeds = [task.seed for task in in_order(fleet, clients)]
    monkeypatch.setattr("secrets.randbits", lambda _: seeds.pop(0))  # devices draw their own
    plain = fleet.ended("plain")
    fleet.job(bundle, "secret", secure_aggregation=True, **SETTINGS)
    assert [task.sum.place for task in in_order(fleet, clients)] == [0, 1, 2, 3]
    secret = fleet.ended("secret")
    before, after = weights_of(fleet, "plain"), weights_of(fleet, "secret")
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, atol=1e-6)
    for name in ("loss", "reports", "examples", "evaluated", "accuracy_personal"):
        assert secret["metrics"][name] == pytest.approx(plain["metrics"][name], abs=1e-4), name


def in_order(fleet, clients):
    """Their tasks; each asks only when the one before has its own, so that places are the same in every job."""
    tasks, threads = [], []
    for client in clients:
        threads.append(threading.Thread(target=client.run, kwargs={"rounds": 1}))
        threads[-1].start()
        fleet.until(lambda client=client: bool(open_tasks(client)))
        tasks += open_tasks(client)
    for thread in threads:
        thread.join()
    return tasks


def open_tasks(client):
    return [task for task in (job.task() for job in client.store.jobs()) if task]

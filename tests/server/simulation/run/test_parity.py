"""The simulator against the real thing: a server and clients over HTTP, and the same fleet simulated.

Rounds end with the same weights, and take the bytes that the server counts.
"""

import threading
import time

import numpy as np
import pytest
from safetensors.numpy import save
from sqlalchemy import func, select

from server.simulation.bundled import completed
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import Worker
from server.simulation.data.population import sampled
from server.simulation.plan import plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.storage.jobs import find_job
from server.storage.schema.tables import tasks
from server.strategy.state import ServerState
from tests.edge_client import conftest as devices

fleet = devices.fleet
CLIENTS, ROUNDS, SEED = 3, 3, 11
METHODS = {
    "spry": ("spry", {"kind": "orthogonal", "directions": 2}),
    "numbers and the head's gradient": ("spry", {"mode": "iteration", "iterations": 2, "head": "exact"}),
    "the mean of those who agree": ("spry", {"directions": 2}, {"units_per_client": 0, "aggregation": "agreeing"}),
    "a private mean, by noise that hides nothing": (
        "spry",
        {"directions": 2},
        {
            "units_per_client": 0,
            "privacy_noise": 2e-4,
            "privacy_clip": 0.05,
            "optimizers": {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}},
        },
    ),
    "directions at bottlenecks": ("spry", {"directions": 2}, {"units_per_client": 2}, "bottleneck"),
    "numbers of differences": ("fedmezo", {"mode": "iteration", "iterations": 2, "sigma": 1e-2}),
}
"""What hosts do around the client's round and the strategy that they share: estimators, optimizers and other rules of
aggregation have tests of their own."""
BUNDLES = {"lora": ("trainable", 1), "bottleneck": ("narrow", 2)}
"""By their adapters: a fixture, and the rank."""
REPORT = 40
"""Bytes by which reports in JSON differ: seconds and peak memory have more or fewer digits."""


@pytest.fixture
def data(writing):
    return writing(rows=30, test=4)


def plan(data, model_folder, method, training, others=None, adapter="lora"):
    return plan_for(
        method=method, preset="default", model=str(model_folder), data=str(data), seed=SEED, clients=CLIENTS, alpha=1.0,
        adapter={"method": adapter, "rank": BUNDLES[adapter][1], "last_blocks": 0},
        settings=settings(training, others),
    )  # fmt: skip


def settings(training, others=None):
    rates = {"learning_rate": 0.05, "head_learning_rate": 0.1}
    asked = {"batch": 4, "length": 8, **rates, **training}
    return {"per_round": CLIENTS, "rounds": ROUNDS, "norm_bound": 20, "training": asked, **(others or {})}


def simulated(plan):
    worker = Worker(plan)
    fleet = Fleet(plan, worker.manifest, CLIENTS, 0, Alone(worker))
    state, lines = RunState(ServerState(0, worker.learner.initial)), []
    while state.round < ROUNDS:
        state, line = fleet.play(state)
        lines.append(line)
    return worker, state.model.weights, lines


def real(fleet, bundle, plan, worker):
    """Clients check in one after the other, in the order in which the simulation deals out places."""
    settings = plan.settings.model_dump(mode="json", exclude={"training"})
    fleet.job(fleet.upload(bundle), training=plan.settings.model_dump(mode="json")["training"], **settings)
    clients = [
        fleet.client([{"text": e.text, "label": e.label} for e in worker.population.client(number).train], str(number))
        for number in range(CLIENTS)
    ]
    for round_ in range(1, ROUNDS + 1):
        taking_part = []
        for place, number in enumerate(sampled(SEED, round_, CLIENTS, CLIENTS)):
            taking_part.append(thread := threading.Thread(target=clients[number].run, kwargs={"rounds": 1}))
            thread.start()
            wait_for(lambda at=(round_, place): places_taken(fleet, at[0]) > at[1])
        for thread in taking_part:
            thread.join(devices.PATIENCE)
        wait_for(lambda at=round_: fleet.state()["done"] >= at)
    store = fleet.app.state.services.store
    job = find_job(store, "topics")
    return store.models.load(job, job.version).weights


def places_taken(fleet, round_):
    count = select(func.count()).select_from(tasks).where(tasks.c.round == round_)
    with fleet.app.state.services.store.database.read() as connection:
        return connection.scalar(count)


def wait_for(condition):
    until = time.monotonic() + devices.PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def counted(fleet):
    """{round: (bytes up, bytes down)} of all clients, as the server has them."""
    totals = {}
    for row in fleet.call("GET", "/v1/jobs/topics/traffic").json():
        up, down = totals.get(row["round"], (0, 0))
        totals[row["round"]] = up + row["up"], down + row["down"]
    del totals[0]  # the bundle's files
    return totals


def bytes_of(line, mode, records):
    """(up, down) of a simulated round, as a server of real clients counts them."""
    if mode == "iteration":
        return line["bytes_up"], records  # clients of the round before have its weights already
    down = line["bytes_down"] if line["round"] > 1 else 0  # the first weights come with the bundle
    return pytest.approx(line["bytes_up"], abs=CLIENTS * REPORT), down


@pytest.mark.parametrize("case", [case for case in METHODS if case != "directions at bottlenecks"])
def test_three_rounds_end_with_the_same_weights_by_the_same_bytes(case, fleet, data, model_folder, request):
    wanted = plan(data, model_folder, *METHODS[case])
    worker, expected, lines = simulated(wanted)
    bundle = request.getfixturevalue(BUNDLES[wanted.adapter.method][0])
    found = real(fleet, bundle, wanted, worker)
    moved = {name: np.abs(expected[name] - worker.learner.initial[name]).max() for name in expected}
    assert found.keys() == expected.keys()
    assert max(moved.values()) > 1e-3
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=0.02 * max(moved.values()), err_msg=name)

    records = lines[0]["bytes_down"] - CLIENTS * len(save(worker.learner.initial))
    counts = {line["round"]: bytes_of(line, wanted.settings.training.mode, records) for line in lines}
    until = time.monotonic() + devices.PATIENCE
    while counted(fleet) != counts and time.monotonic() < until:  # its background may be writing the last of them down
        time.sleep(0.05)
    assert counted(fleet) == counts


@pytest.mark.parametrize("case", ["spry", "numbers and the head's gradient", "directions at bottlenecks"])
def test_by_a_bundles_programs_the_weights_are_the_same_to_the_last_bit(case, fleet, data, request):
    method, training, *others = METHODS[case]
    bundle = request.getfixturevalue(BUNDLES[(*others, {}, "lora")[1]][0])
    asked = {
        "method": method, "preset": "default", "model": str(bundle), "data": str(data), "seed": SEED, "alpha": 1.0,
        "clients": CLIENTS, "settings": settings(training, *others[:1]),
    }  # fmt: skip
    wanted = plan_for(**completed(asked, None))
    worker, expected, lines = simulated(wanted)
    found = real(fleet, bundle, wanted, worker)
    assert {name: value.tobytes() for name, value in found.items()} == {n: v.tobytes() for n, v in expected.items()}
    assert len({line["loss"] for line in lines}) == ROUNDS


FAINT = {
    "privacy_noise": 1e-5,
    "privacy_clip": 0.05,
    "optimizers": METHODS["a private mean, by noise that hides nothing"][2]["optimizers"],
}


@pytest.mark.parametrize("private", [{}, FAINT], ids=["plain", "private"])
def test_a_sum_in_secret_ends_with_the_weights_that_are_simulated(
    fleet, trainable, model_folder, data, private, monkeypatch
):
    """The same integers, with masks and without; noise is so little that clipped changes are seen through it.

    Devices draw seeds of their own for it, which no simulation knows: here they take the server's.
    """
    monkeypatch.setattr("edge_client.store.job.own_seed", lambda task: task.seed)
    others = {"units_per_client": 0, "secure_aggregation": True, "minimum": CLIENTS, **private}
    planned = plan(data, model_folder, "spry", {"directions": 2}, others)
    worker, weights, lines = simulated(planned)
    assert {line["clients"] for line in lines} == {CLIENTS}
    assert max(np.abs(weights[name] - worker.learner.initial[name]).max() for name in weights) > 1e-3
    for name, value in real(fleet, trainable, planned, worker).items():
        np.testing.assert_allclose(value, weights[name], atol=6e-6 if private else 2e-6, err_msg=name)

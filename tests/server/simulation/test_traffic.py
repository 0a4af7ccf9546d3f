"""The bytes of simulated rounds, against those that a server of real clients counts."""

import pytest

from server.models import Model
from server.simulation.crews import Alone
from server.simulation.fleet import Fleet, State
from server.simulation.work import Worker
from tests.server.simulation import test_parity as parity

fleet, trainable, data = parity.fleet, parity.trainable, parity.data
REPORT = 40
"""Bytes by which reports in JSON differ: seconds and peak memory have more or fewer digits."""


def simulated(plan):
    """The traffic of each round, and the size of all weights before it."""
    worker = Worker(plan)
    fleet = Fleet(plan, worker.manifest, parity.CLIENTS, 0, Alone(worker))
    state, lines = State(Model(0, worker.learner.initial, {})), []
    while state.round < parity.ROUNDS:
        state, line = fleet.play(state)
        lines.append(line)
    return worker, lines


def counted(fleet):
    """{round: (bytes up, bytes down)} of all clients, as the server has them."""
    totals = {}
    for row in fleet.call("GET", "/v1/jobs/topics/traffic").json():
        up, down = totals.get(row["round"], (0, 0))
        totals[row["round"]] = up + row["up"], down + row["down"]
    return totals


def test_an_epochs_bytes_are_a_servers(fleet, trainable, data, model_folder):
    plan = parity.plan("spry", {}, data, model_folder)
    worker, lines = simulated(plan)
    parity.real(fleet, trainable, plan, worker)
    found = counted(fleet)
    for line in lines:
        up, down = found[line["round"]]
        assert abs(up - line["bytes_up"]) <= parity.CLIENTS * REPORT
        assert down == (line["bytes_down"] if line["round"] > 1 else 0)  # the first weights come with the bundle


@pytest.mark.parametrize("head", ["apart", "exact"])
def test_an_iterations_bytes_are_a_servers(head, fleet, trainable, data, model_folder):
    plan = parity.plan("spry", {"mode": "iteration", "iterations": 2, "head": head}, data, model_folder)
    worker, lines = simulated(plan)
    parity.real(fleet, trainable, plan, worker)
    found = counted(fleet)
    records = lines[0]["bytes_down"] - parity.CLIENTS * whole(worker)
    for line in lines:
        up, down = found[line["round"]]
        assert up == line["bytes_up"]
        assert down == records  # clients of the round before have its weights already


def whole(worker):
    from safetensors.numpy import save

    return len(save(worker.learner.initial))

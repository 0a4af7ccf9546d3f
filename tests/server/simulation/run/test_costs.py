"""Test what simulated rounds move, against the paper's formulas; and the formulas against the paper's tables."""

import math

import pytest

from edge_client.training.features import shapes_of
from server.policy.passes import ONE_TOKEN
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import Worker
from server.simulation.methods.methods import METHODS
from server.simulation.plan import plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.strategy.state import ServerState
from tests.server.simulation.runs import SMALL_LORA
from tests.server.simulation.tables import Shape, client_work, in_tables, numbers_down, numbers_up, server_work

CLIENTS, BATCH = 16, 4
TABLE = {"spry", "fedavg", "fedyogi", "fedsgd", "fedmezo", "baffle+", "fwdllm+"}
BACKPROP = {"fedavg", "fedyogi", "fedsgd"}
CASES = [
    *[(method, "epoch") for method in sorted(TABLE)],
    *[(method, "iteration") for method in sorted(TABLE - BACKPROP)],
]
PER_TENSOR, PER_UPDATE = 170, 300
"""Bytes of safetensors beside the numbers."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = [f'{{"text": "the ice is on lake {"abc"[i % 3]}", "label": {i % 3}}}\n' for i in range(CLIENTS * 6)]
    (folder / "train.jsonl").write_text("".join(rows))
    (folder / "test.jsonl").write_text("".join(rows[:3]))
    return folder


@pytest.fixture(scope="module")
def worker(data, model_folder):
    return Worker(plan("spry", "epoch", 1, data, model_folder))


def plan(method, mode, per_round, data, model_folder, **training):
    training = {"mode": mode, "batch": BATCH, "length": 8, "iterations": 1} | training
    return plan_for(
        method=method, preset="default", model=str(model_folder), data=str(data), seed=3, clients=CLIENTS, alpha=1.0,
        adapter=SMALL_LORA, personal=False,
        settings={"per_round": per_round, "rounds": 2, "evaluate_every": 2, "training": training},
    )  # fmt: skip


@pytest.fixture
def play(worker, data, model_folder):
    """The line of a first round."""

    def played(method, mode, per_round, **training):
        worker.plan = plan(method, mode, per_round, data, model_folder, **training)
        fleet = Fleet(worker.plan, worker.manifest, CLIENTS, 0, Alone(worker))
        return fleet.play(RunState(ServerState(0, worker.learner.initial)))[1], fleet

    return played


def shape_of(manifest, clients):
    (size,) = {unit.size for unit in manifest.units}
    return Shape(len(manifest.units), clients, size)


def test_the_tables_have_these_methods():
    assert {name for name, method in METHODS.items() if in_tables(method)} == TABLE


def moments_in(manifest):
    """Return what a client tells of its features in its first round, in numbers."""
    return sum(math.prod(shape) for shape in shapes_of(manifest, manifest.features).values())


@pytest.mark.parametrize(("method", "mode"), CASES)
def test_a_round_moves_what_the_table_says(method, mode, play, worker):
    family = METHODS[method].family
    frequency = "iteration" if method == "fedsgd" else mode
    head = sum(parameter.size for parameter in worker.manifest.head)
    for clients in (1, 2, 4, 8):  # of four units: none is left over, or some clients share one
        shape = shape_of(worker.manifest, clients)
        line, fleet = play(method, mode, clients)
        up, down = numbers_up(family, frequency, shape), numbers_down(family, frequency, shape)
        whole = clients * (shape.all_weights + head)
        assert line["numbers_down_own"] == down
        if mode == "epoch":
            assert line["numbers_up"] == clients * (up + head)
            assert line["numbers_down"] == whole
            if family != "forward":
                assert whole == down + clients * head
            tensors = len(worker.learner.initial)
            told = 4 * clients * moments_in(worker.manifest) if fleet.settings.measures(worker.manifest) else 0
            around = line["bytes_up"] - 4 * line["numbers_up"] - told
            assert 0 < around <= clients * (PER_UPDATE + PER_TENSOR * (tensors + 2))
            assert 0 < line["bytes_down"] - 4 * line["numbers_down"] <= clients * (PER_UPDATE + PER_TENSOR * tensors)
        else:  # where the table has one number, each direction, the head, and each example have theirs
            training = fleet.settings.training
            assert training.rows == (BATCH if method == "spry" else 1)  # along directions that examples share, one
            derivatives = training.rows * training.directions * 2
            assert line["numbers_up"] == clients * up * derivatives
            assert line["numbers_down"] == whole + clients * clients * (derivatives + 1)
            assert line["bytes_up"] == clients * (12 + 2 * derivatives)


def test_later_iterations_of_a_round_bring_no_weights_again(play, worker):
    shape = shape_of(worker.manifest, 2)
    once, _ = play("spry", "iteration", 2)
    line, _ = play("spry", "iteration", 2, iterations=3)
    assert line["numbers_down_own"] == once["numbers_down_own"] + 2 * 2
    assert line["numbers_down_own"] < 3 * numbers_down("forward", "iteration", shape)
    assert line["numbers_up"] == 3 * once["numbers_up"]


def test_a_round_tells_the_passes_of_its_clients(play):
    """Two blocks with two units each, the last read at one token: from the first on tangents go through both."""
    late, early = ONE_TOKEN / 2, (1 + ONE_TOKEN) / 2
    assert play("fedavg", "epoch", 1)[0]["passes"] == 3
    assert play("spry", "epoch", 1)[0]["passes"] == pytest.approx(1 + early)
    assert play("spry", "epoch", 4)[0]["passes"] == pytest.approx(1 + (early + late) / 2)
    assert play("spry", "epoch", 4, directions=4)[0]["passes"] == pytest.approx(1 + 4 * (early + late) / 2)
    mixed = play("spry", "epoch", 4, directions=4, estimator="mixed")[0]
    assert mixed["passes"] == pytest.approx((4 + 4 + 2 + 2) / 4)
    assert play("spry", "epoch", 4, estimator="auto")[0]["passes"] == 3, "all can hold an exact step"
    assert play("baffle+", "epoch", 2)[0]["passes"] == 40
    assert play("fwdllm+", "epoch", 2)[0]["passes"] == 2


def test_a_round_tells_all_that_its_clients_compute(play):
    """Steps, and in the first round the batches on which all measure features: each client has six examples, in two."""
    assert play("fedavg", "epoch", 2, iterations=3)[0]["device_passes"] == 2 * 3 * 3
    assert play("spry", "iteration", 2, iterations=3)[0]["device_passes"] == pytest.approx(
        2 * 3 * (1 + (1 + ONE_TOKEN) / 2)
    )
    line, fleet = play("spry", "epoch", 2, estimator="auto")
    assert fleet.settings.measures(fleet.manifest)
    assert line["device_passes"] == 2 * 3 + 2 * 2


def test_the_table_of_communication():
    few, many = Shape(6, 3, 10), Shape(6, 12, 10)
    for family in ("backprop", "zero-order"):
        assert numbers_up(family, "epoch", few) == 60
        assert numbers_down(family, "epoch", few) == 180
    assert numbers_up("backprop", "iteration", few) == 60
    assert numbers_down("backprop", "iteration", few) == 180
    assert numbers_up("zero-order", "iteration", few) == 1
    assert numbers_down("zero-order", "iteration", few) == 61 * 3
    assert [numbers_up("forward", "epoch", shape) for shape in (few, many)] == [20, 10]
    assert [numbers_down("forward", "epoch", shape) for shape in (few, many)] == [60, 120]  # w max(L, M)
    assert [numbers_up("forward", "iteration", shape) for shape in (few, many)] == [1, 1]
    assert [numbers_down("forward", "iteration", shape) for shape in (few, many)] == [63, 132]


def test_the_table_of_computation():
    few, many = Shape(6, 3, 10), Shape(6, 12, 10)
    assert client_work("backprop", few) == (18, 0, 0)
    assert client_work("zero-order", few, draws=3) == (12, 0, 180)
    assert client_work("zero-order", few, directions=20) == (240, 0, 1200)
    assert client_work("forward", few) == (4, 4, 60)
    assert client_work("forward", many) == (2, 2, 60)
    assert server_work("backprop", "epoch", few) == server_work("zero-order", "epoch", few) == 120
    assert server_work("backprop", "iteration", few) == 120
    assert server_work("zero-order", "iteration", few) == 360
    assert [server_work("forward", "epoch", shape) for shape in (few, many)] == [0, 60]
    assert [server_work("forward", "iteration", shape) for shape in (few, many)] == [120, 240]

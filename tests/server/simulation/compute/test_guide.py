"""Guided directions: what they span, and that an estimate along them is the gradient's part in their span."""

import json

import numpy as np
import pytest

from edge_client.data.batches import Batches
from edge_client.data.encoder import TextEncoder
from edge_client.tasks.classification import Classification
from server.errors import SimulationError
from server.simulation.compute.crews import Alone
from server.simulation.compute.guide import orthonormal
from server.simulation.compute.work import Worker
from server.simulation.methods.guided import drawing_along
from server.simulation.plan import plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.storage.files.models import Model
from tests.server.simulation.runs import SMALL_LORA

DIRECTIONS = 5


@pytest.fixture
def desk(tmp_path):
    """As many examples as there are directions, three times."""
    rows = [
        {"text": f"the ice on lake {letter}", "label": number % 3} for number, letter in enumerate("abcdefghijklmno")
    ]
    file = tmp_path / "desk.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def planned(model_folder, writing, desk):
    data = writing(rows=60, test=4)

    def plan(method="fedfgd", guided=DIRECTIONS, examples=str(desk), settings=None, **training):
        steps = {"length": 8, "batch": 4, "iterations": 1, "learning_rate": 1.0, "optimizer": "sgd"}
        if guided:
            steps["directions"] = guided
        return plan_for(
            method=method, preset="default", model=str(model_folder), data=str(data), seed=5, clients=6, alpha=1.0,
            adapter={**SMALL_LORA, "examples": examples}, guided=guided,
            settings={"per_round": 4, "training": {**steps, **training}, **(settings or {})},
        )  # fmt: skip

    return plan


@pytest.fixture
def weights(planned):
    """Weights that give each parameter a slope, and are too small for a loss that is sure of itself and has none."""
    rng = np.random.default_rng()
    initial = Worker(planned()).learner.initial
    return {name: rng.normal(0, 0.1, value.shape).astype(np.float32) for name, value in initial.items()}


def members(worker):
    return Fleet(worker.plan, worker.manifest, 6, 4, crew=None)._members(1, evaluate=False)  # nobody is called


def names_of(worker, member):
    return [p.name for unit in member.task.units for p in worker.manifest.units[unit].parameters]


def change(trained, weights, names):
    return np.concatenate([(trained.update[name] - weights[name]).reshape(-1) for name in names])


def test_a_mixed_step_takes_guided_directions_before_the_last_blocks(planned, weights):
    forward, mixed = (Worker(planned("spry", estimator=estimator)) for estimator in ("forward", "mixed"))
    exact = Worker(planned("fedyogisplit", guided=0))
    guide = forward.guide(weights, 1)
    pairs = [worker.train(members(worker), weights, {}, guide) for worker in (forward, exact, mixed)]
    blocks = set()
    for member, along, true, trained in zip(members(forward), *pairs, strict=True):
        names = names_of(forward, member)  # its place's: in a mixed step it has those of the last block too
        (block,) = {mixed.manifest.units[unit].segments[0] for unit in member.task.units}
        blocks.add(block)
        expected = along if block == "block.0" else true
        np.testing.assert_allclose(
            change(trained, weights, names), change(expected, weights, names), rtol=1e-4, atol=1e-7
        )
    assert blocks == {"block.0", "block.1"}


@pytest.mark.parametrize("method", ["fedfgd", "spry"])
def test_an_estimate_is_the_part_of_the_gradient_that_the_guide_spans(method, planned, weights):
    ours, exact = Worker(planned(method)), Worker(planned("fedyogi", guided=0))
    guide = ours.guide(weights, 1)
    true = exact.train(members(exact), weights, {}, {})
    found = ours.train(members(ours), weights, {}, guide)
    for member, expected, trained in zip(members(ours), true, found, strict=True):
        names = names_of(ours, member)
        whole, part = (change(one, weights, names) for one in (expected, trained))
        rows = np.concatenate([guide[name].reshape(DIRECTIONS, -1) for name in names], axis=1).astype(np.float64)
        spanned = rows.T @ np.linalg.lstsq(rows.T, whole, rcond=None)[0]
        assert 0.01 < np.linalg.norm(spanned) / np.linalg.norm(whole) < 0.999
        assert np.linalg.norm(part - spanned) < 1e-4 * np.linalg.norm(spanned)


def test_drawn_directions_bring_what_the_guide_leaves_out(planned, weights):
    """A whole block of orthogonal directions beside the guide's gives the gradient of a unit back."""
    ours = Worker(planned("spry", directions=DIRECTIONS + 64, kind="orthogonal"))
    exact = Worker(planned("fedyogisplit", guided=0))
    assert {unit.size for unit in ours.manifest.units} == {64}
    guide = ours.guide(weights, 1)
    true = exact.train(members(exact), weights, {}, {})
    found = ours.train(members(ours), weights, {}, guide)
    for member, expected, trained in zip(members(ours), true, found, strict=True):
        names = names_of(ours, member)
        whole, estimate = (change(one, weights, names) for one in (expected, trained))
        assert np.linalg.norm(estimate - whole) < 1e-4 * np.linalg.norm(whole)


def test_an_estimate_with_some_guided_directions_is_right_on_average(planned, weights):
    """And what the guide spans is right every time."""
    ours, exact = Worker(planned("spry", directions=DIRECTIONS + 3)), Worker(planned("fedyogisplit", guided=0))
    guide, (member, *_) = ours.guide(weights, 1), members(ours)
    names = names_of(ours, member)
    (true, *_) = exact.train(members(exact)[:1], weights, {}, {})
    whole = change(true, weights, names)
    rows = np.concatenate([guide[name].reshape(DIRECTIONS, -1) for name in names], axis=1)
    (found,) = exact.learner.differentiate(
        [weights], [ours._batches(member.client, member.task).at(0)], [names], per_example=False
    )
    gradient = np.concatenate([found.gradients[name].reshape(-1) for name in names])
    assert np.allclose(-gradient, whole, atol=1e-5)  # the same batch
    seeds = np.random.default_rng().integers(2**63, size=300)
    estimates = []
    for seed in seeds.tolist():
        drawn = drawing_along(guide)(ours.manifest, member.task.units, seed, member.task.training, 0)
        flat = np.concatenate([drawn[name].reshape(DIRECTIONS + 3, 4, -1)[:, 0] for name in names], axis=1)
        estimates.append((flat @ gradient) @ flat / len(flat))
    off = np.stack(estimates) - gradient
    assert np.abs(off @ rows.T).max() < 1e-4 * np.linalg.norm(gradient)
    error = np.linalg.norm(off.mean(0)) / np.sqrt(np.square(off).sum(1).mean() / len(seeds))
    assert error < 2  # standard errors, of 64 numbers together
    assert np.linalg.norm(off, axis=1).min() > 1e-3 * np.linalg.norm(gradient)


def test_the_guide_of_a_group_spans_its_gradient(planned, weights):
    """One direction for all examples of the desk: the gradient of the same examples lies along it."""
    worker = Worker(planned(guided=1))
    task, examples = members(worker)[0].task, worker._guide._examples
    encoder = TextEncoder(worker.learner.tokenizer, worker.manifest, len(examples), 8)
    batch = Batches(examples[:8], encoder, Classification().encode, 0).at(0)
    worker._guide._examples = examples[:8]
    guide, names = worker.guide(weights, 1), names_of(worker, members(worker)[0])
    (found,) = worker.learner.differentiate([weights], [batch], [names], per_example=False)
    ours, truth = (np.concatenate([values[name].reshape(-1) for name in names]) for values in (guide, found.gradients))
    assert len(names) == sum(len(worker.manifest.units[unit].parameters) for unit in task.units)
    assert ours @ truth == pytest.approx(np.linalg.norm(ours) * np.linalg.norm(truth), rel=1e-5)


@pytest.mark.parametrize("method", ["fedfgd", "spry"])
def test_both_modes_move_along_the_same_gradient(method, planned):
    """One step of plain descent: what a server makes of numbers is the mean of what clients would make of them."""
    plain = {"optimizers": {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}, "measure_features": False}
    moved = {}
    for mode in ("epoch", "iteration"):
        worker = Worker(planned(method, mode=mode, head="exact", settings=plain))
        fleet = Fleet(worker.plan, worker.manifest, 6, 4, Alone(worker))
        state, _ = fleet.play(RunState(Model(0, worker.learner.initial, {})))
        moved[mode] = state.model.weights
    initial = worker.learner.initial
    epoch, iteration = (
        np.concatenate([(after[name] - value).reshape(-1) for name, value in initial.items()])
        for after in moved.values()
    )
    assert np.linalg.norm(epoch) > 1e-3
    assert np.linalg.norm(epoch - iteration) < 2e-3 * np.linalg.norm(epoch)  # numbers go as halves


def test_a_guide_is_made_of_gradients_at_the_weights_of_its_round(planned, weights):
    worker = Worker(planned())
    first = worker.guide(weights, 1)
    again = Worker(planned()).guide(weights, 1)  # by any worker
    assert all(np.array_equal(first[name], again[name]) for name in first)
    for others in (worker.guide(weights, 2), worker.guide(worker.learner.initial, 1)):
        assert any(not np.allclose(first[name], others[name]) for name in first)
    assert all(rows.shape == (DIRECTIONS, *weights[name].shape) for name, rows in first.items())


def test_orthonormal():
    rng = np.random.default_rng()
    rows = rng.normal(size=(4, 9)) * [[1e-8], [1], [1e8], [3]]
    rows[3] = rows[0] / 1e-8 - 2 * rows[1]  # nothing new
    found = orthonormal(rows)
    assert np.allclose(found[:3] @ found[:3].T, np.eye(3), atol=1e-12)
    assert np.allclose(rows[:3] @ found[:3].T @ found[:3], rows[:3], rtol=1e-9)
    assert not found[3].any()
    assert not orthonormal(np.zeros((2, 3))).any()


def test_what_a_round_moves_counts_the_guide(planned):
    worker = Worker(planned("spry"))
    fleet = Fleet(worker.plan, worker.manifest, 6, 4, Alone(worker))
    _, line = fleet.play(RunState(Model(0, worker.learner.initial, {})))
    units = sum(unit.size for unit in worker.manifest.units)
    head = sum(parameter.size for parameter in worker.manifest.head)
    assert line["numbers_down"] == 4 * (units + head + DIRECTIONS * units)
    assert line["bytes_down"] > 4 * line["numbers_down"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"method": "fedyogi"}, "guided directions are for forward gradients, and fedyogi takes none"),
        ({"directions": 4}, "5 of 4 directions cannot be guided: lower --guided, or raise --directions"),
        ({"directions": 0}, "directions 0 are the whole gradient and leave nothing to guide: give --directions N"),
        ({"head": "joint"}, "guided directions are of units alone and need an exact head, got head joint"),
        ({"examples": ""}, "guided directions come from labelled examples: give --examples FILE"),
    ],
)
def test_what_cannot_be_guided(asked, told, planned):
    with pytest.raises(SimulationError, match=told):
        planned(**asked)


def test_clients_with_several_units_that_are_not_all(planned):
    worker = Worker(planned("spry", settings={"per_round": 3}))
    with pytest.raises(SimulationError, match="3 clients a round hold several of 4 units: raise --per-round to 4"):
        members(worker)


def test_too_few_examples(planned):
    with pytest.raises(SimulationError, match="16 guided directions need as many --examples or more, and there are 15"):
        Worker(planned(guided=16))

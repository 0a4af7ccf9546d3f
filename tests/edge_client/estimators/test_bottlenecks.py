"""Directions at bottlenecks: what a step makes of them, and estimates by them against the exact gradient."""

import numpy as np
import pytest
import torch
from torch.func import jvp

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FIRST_SCHEMA, SCHEMA
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.estimators.registry import estimator_for
from edge_client.gradient.drawing import step_directions, without_padding
from edge_client.gradient.estimate import directions_for
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.stepper import Stepper
from tests.edge_client.bench import Bench, flat
from tests.export.trained import LENGTH, Trained

RUNTIMES = ("onnx", "executorch", "torchscript")
RANK = 2


@pytest.fixture(scope="module")
def bench(narrow):
    bundle = Bundle.open(narrow)
    with open_runtime("onnx", bundle.folder, threads=1) as runtime:
        yield Bench(bundle, runtime)


@pytest.fixture(scope="module")
def everywhere(exported_once, model_folder, tmp_path_factory):
    """For three runtimes and two directions, beside PEFT's model."""
    adapter = AdapterOptions("bottleneck", rank=RANK)
    folder = exported_once("narrow-everywhere", adapter=adapter, runtimes=RUNTIMES, directions=(2,), verify="none")
    return Trained(folder, model_folder, tmp_path_factory.mktemp("trained"))


# --- a step ---


def tangents_at(trained, along):
    """Each example's derivative along its own directions, and what enters its factors: by hooks, one at a time."""
    modules = {name: trained.model.get_submodule(name.removesuffix(".weight") + ".default") for name in along}
    entering, added = {}, {}

    def hook(name):
        def note(_module, given, result):
            entering[name] = given[0].detach()
            return result + added[name] if name in added else result

        return note

    def losses(moved):
        added.update(moved)
        return trained.losses()

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    slopes = []
    for row in range(len(next(iter(along.values())))):
        tangent = {name: torch.zeros(trained.batch, LENGTH, RANK) for name in along}
        for name, values in along.items():
            seen = torch.tensor(values[row])
            tangent[name][row % trained.batch, : len(seen)] = seen  # a unit of one token sees the first
        still = {name: torch.zeros_like(value) for name, value in tangent.items()}
        slopes.append(float(jvp(losses, (still,), (tangent,))[1][row % trained.batch]))
        added.clear()
    trained.losses()
    for handle in handles:
        handle.remove()
    return np.array(slopes), entering


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_step_of_every_runtime(everywhere, runtime):
    manifest, count = everywhere.manifest, 2
    assert {unit.tangents for unit in manifest.units} == {"bottleneck"}
    assert {unit.token for unit in manifest.units} == {None, 0}, "the last block's query is that of one token"
    random = np.random.default_rng()
    along = {
        parameter.name: random.standard_normal((count * everywhere.batch, *parameter.shape), np.float32)
        for unit in manifest.units
        for parameter in unit.tangents_of(LENGTH)
    }
    slopes, entering = tangents_at(everywhere, along)
    with open_runtime(runtime, everywhere.folder, threads=1) as opened:
        stepper = Stepper(manifest, opened, runtime, everywhere.batch, LENGTH, count)
        step = stepper.along(everywhere.tokens, everywhere.labels, everywhere.weights, along, 1)
    np.testing.assert_allclose(step.jvp.reshape(-1), slopes, rtol=1e-3, atol=1e-5)
    assert step.moved.keys() == along.keys()
    for name, values in along.items():
        seen = entering[name][:, : values.shape[1]].numpy()
        expected = np.einsum("ktr,kti->kri", values, np.concatenate([seen] * count))
        np.testing.assert_allclose(step.moved[name], expected, rtol=1e-4, atol=1e-5)


def test_units_that_do_not_move_tell_nothing(everywhere):
    manifest = everywhere.manifest
    along = directions_for(manifest, [3], 7, directions=2, batch=everywhere.batch, length=LENGTH)
    with open_runtime("onnx", everywhere.folder, threads=1) as opened:
        stepper = Stepper(manifest, opened, "onnx", everywhere.batch, LENGTH, 2)
        step = stepper.along(everywhere.tokens, everywhere.labels, everywhere.weights, along, 1)
    np.testing.assert_allclose(step.jvp.reshape(-1), tangents_at(everywhere, along)[0], rtol=1e-3, atol=1e-5)
    assert step.moved.keys() == along.keys()


# --- the manifest ---


def test_older_readers_are_told(narrow, trainable):
    """They would take directions of weights; what they can read stays as it was."""
    assert Bundle.open(narrow).manifest.schema == SCHEMA
    assert Bundle.open(trainable).manifest.schema == FIRST_SCHEMA


# --- drawing ---


def test_padding_takes_no_direction(bench):
    units = range(len(bench.manifest.units))
    drawn = directions_for(bench.manifest, units, 5, directions=3, batch=4, length=LENGTH)
    mask = (np.arange(LENGTH) < np.array([[8], [5], [2], [1]])).astype(np.int64)
    found = without_padding(drawn, bench.manifest, mask)
    for unit in bench.manifest.units:
        (name,) = (parameter.name for parameter in unit.parameters)
        counted = np.tile(mask, (3, 1))[..., None] if unit.token is None else np.ones((12, 1, 1))
        np.testing.assert_array_equal(found[name], drawn[name] * counted)
        assert found[name].any()


def test_directions_of_weights_where_examples_share_them(bench, changed):
    """As central differences take them, and mode iteration draws them again."""
    task = changed(per_example=False)
    drawn = step_directions(bench.manifest, task.units, task.seed, task.training, 0)
    shapes = {p.name: p.shape for unit in task.units for p in bench.manifest.units[unit].parameters}
    assert {name: values.shape for name, values in drawn.items()} == {n: (1, *s) for n, s in shapes.items()}


# --- estimates ---


@pytest.mark.parametrize(
    "settings",
    [
        {"estimator": "forward"},
        {"estimator": "forward", "kind": "rademacher", "directions": 2},
        {"estimator": "forward", "head": "apart", "directions": 2},
        {"estimator": "central", "head": "joint", "directions": 3},
    ],
    ids=str,
)
def test_estimates_average_to_the_exact_gradient(bench, changed, settings):
    task = changed(**settings)
    exact = bench.gradient(changed(estimator="exact"))
    estimator = estimator_for(bench.manifest, task, bench.passes(task, cache_bytes=1 << 20))
    batch = bench.batches(task).at(0)
    found = [estimator.gradient(batch, bench.weights, i).gradients for i in range(400)]
    head = {p.name for p in bench.manifest.head}
    mean = {name: np.mean([one[name] for one in found], axis=0) for name in exact.gradients}
    for part in [set(mean)] if task.training.head == "joint" else [set(mean) - head, head]:
        truth = flat(exact.gradients, part)
        spread = np.sqrt(np.mean([np.sum((flat(one, part) - truth) ** 2) for one in found]) / len(found))
        assert spread < 0.6 * np.linalg.norm(truth), "or a bias would not be seen"
        assert np.linalg.norm(flat(mean, part) - truth) < 1.5 * spread + 1e-4


@pytest.mark.parametrize(("unit", "cut"), [(0, 1), (1, 1), (2, 2), (3, 2)])
def test_as_many_orthogonal_directions_as_numbers_are_the_exact_gradient(bench, changed, unit, cut):
    """Of each example, whose tokens have so few."""
    exact = bench.gradient(changed(estimator="exact", units=[unit], cut=cut))
    found = bench.gradient(changed(units=[unit], cut=cut, directions=LENGTH * RANK, kind="orthogonal"))
    for name, value in exact.gradients.items():
        np.testing.assert_allclose(found.gradients[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_batch_in_pieces_gives_what_the_whole_batch_gives(bench, changed, at_once):
    settings = {"directions": 4, "units": [0, 1, 2, 3], "cut": 1}
    for batch in (0, 1):  # the second has only three examples
        whole = bench.gradient(changed(**settings), batch=batch)
        pieces = bench.gradient(changed(batch=at_once, **settings), batch=batch)
        assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
        for name in whole.gradients:
            np.testing.assert_allclose(pieces.gradients[name], whole.gradients[name], rtol=2e-3, atol=2e-4)

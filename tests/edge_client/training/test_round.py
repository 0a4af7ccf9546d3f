"""A client's round without a host: it gives what its parts give, and can be left and taken up at any step."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from edge_client.bundle.folder import Bundle
from edge_client.secagg.adding import changes, unit_name
from edge_client.tasks.classification import Classification
from edge_client.training.epoch import TrainingState, evaluate, train, update
from edge_client.training.features import MEAN, measured, without_moments
from edge_client.training.personal import personal
from edge_client.training.round import client_round, personalized
from edge_client.training.session import TrainingSession
from edge_client.wire.clipping import changes_of, length_of
from edge_client.wire.protocol import Sum, Training
from tests.edge_client.bench import EXAMPLES

TRAINING = Training(batch=4, length=8, epochs=2, learning_rate=0.1)


@pytest.fixture(scope="module")
def bench(trainable):
    opened = TrainingSession(Bundle.open(trainable), "onnx", threads=1)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def weights(bench):
    random = np.random.default_rng(0)
    initial = sorted(bench.bundle.initial_adapter().items())
    return {name: value + 0.3 * random.standard_normal(value.shape, dtype=np.float32) for name, value in initial}


def same(found, expected):
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def run(bench, weights, task, held_back=(), **options):
    return client_round(task, bench.model(task), weights, bench.data(task, EXAMPLES, held_back), **options)


def test_it_trains_the_units_of_its_task_and_the_head(bench, weights):
    task = bench.task(TRAINING, seed=5, units=[2, 3])
    found = run(bench, weights, task)
    model, data = bench.model(task), bench.data(task, EXAMPLES)
    *_, last = train(task, bench.manifest, model.estimator, data.batches, TrainingState(weights))
    assert same(found.tensors, update(task, bench.manifest, last))
    assert same(found.personalized, last.weights)
    assert (found.report.examples, found.report.steps, found.report.seconds) == (7, 4, 0.0)
    assert found.evaluation is None


def test_it_goes_on_from_any_step_with_the_same_bits(bench, weights):
    task, states = bench.task(TRAINING, seed=5), []
    whole = run(bench, weights, task, on_step=states.append)
    assert [state.step for state in states] == [1, 2, 3, 4]
    for state in states:
        again = run(bench, weights, task, resumed=state)
        assert same(again.tensors, whole.tensors)
        assert again.report == whole.report


def test_what_its_task_asks_beside_it(bench, weights):
    task = replace(bench.task(TRAINING, seed=5), evaluate=True, measure=True)
    found = run(bench, weights, task, held_back=EXAMPLES[:3])
    model, spec = bench.model(task), bench.manifest.features
    encoder = bench.encoder(TRAINING.batch, TRAINING.length)
    trained = weights | without_moments(found.tensors)
    own = personal(model.passes.features, EXAMPLES, encoder, bench.kind, trained, spec, task.seed)
    assert same(found.personalized, own)
    scores = evaluate(model.passes.logits, EXAMPLES[:3], encoder, Classification(), [weights, own])
    assert [found.evaluation.before, found.evaluation.own] == scores
    assert found.report.held_back == 3
    moments = measured(model.passes.features, EXAMPLES, encoder, bench.kind, weights, task.seed)
    assert np.array_equal(found.tensors[MEAN], moments.mean)
    assert found.report.measured == moments.rows == 7


def test_a_private_update_is_clipped_and_tells_nothing_of_the_examples(bench, weights):
    task = bench.task(TRAINING, seed=5)
    free, found = run(bench, weights, task), run(bench, weights, replace(task, clip=1e-3))
    far, near = changes_of(weights, free.tensors), changes_of(weights, found.tensors)
    assert length_of(far) > 2e-3
    assert length_of(near) == pytest.approx(1e-3, rel=1e-3)
    for name, change in near.items():
        np.testing.assert_allclose(change, far[name] * (1e-3 / length_of(far)), atol=1e-6)
    assert (found.report.loss, found.report.examples) == (0.0, 1)


def test_an_update_for_a_secure_sum_is_what_changed(bench, weights):
    task = bench.task(TRAINING, seed=5, units=[2, 3])
    plain = run(bench, weights, task)
    found = run(bench, weights, replace(task, sum=Sum(place=0, units=[3], least=3)))
    assert found.tensors.keys() == {unit_name(3), "head"}
    assert same(found.tensors, changes(bench.manifest, [3], plain.tensors, weights))


def test_a_model_without_a_layer_to_fit_is_personalized_by_training(bench, weights):
    task = bench.task(TRAINING, seed=5)
    data, unfit = bench.data(task, EXAMPLES), msgspec.structs.replace(bench.manifest, features=None)
    own = personalized(task, replace(bench.model(task), manifest=unfit), data, weights)
    assert same(own, run(bench, weights, task).personalized)

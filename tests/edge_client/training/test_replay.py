"""Test that a client's repeated step is the server's, to the last bit where both are this code."""

import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replaced

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Parameter
from edge_client.data.batches import Batches
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.estimators.estimator import trained
from edge_client.estimators.registry import estimator_for
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.passes import Passes
from edge_client.tasks.classification import Classification
from edge_client.training.optimizers import server_step
from edge_client.training.replay import changes, replay
from edge_client.training.server_optimizers import SERVER_OPTIMIZERS
from edge_client.wire.protocol import ServerOptimizer, ServerOptimizers, Training
from edge_client.wire.scalars import (
    Participant,
    ScalarError,
    ScalarReport,
    StepRecord,
    as_published,
    decode_records,
    decode_report,
    encode_record,
    encode_report,
    split_head,
)

EXAMPLES = [Example(text, None, number % 3) for number, text in enumerate(["a train", "the ice", "is it", "a b", "on"])]


@pytest.fixture(scope="module")
def opened(trainable):
    bundle = Bundle.open(trainable)
    with open_runtime("onnx", bundle.folder, threads=1) as runtime:
        yield bundle, runtime


def estimator(opened, task):
    bundle, runtime = opened
    return estimator_for(bundle.manifest, task, Passes(bundle.manifest, runtime, task))


def batch_of(opened, task, step=0):
    bundle, _ = opened
    encoder = TextEncoder(bundle.tokenizer(), bundle.manifest, 4, 8)
    return Batches(EXAMPLES, encoder, Classification().encode, task.seed).at(step)


def sent(opened, task, weights, iteration=0, step=0):
    """A client's step as the server reads it."""
    report = estimator(opened, task).report(batch_of(opened, task, step), weights, iteration)
    return decode_report(encode_report(report), opened[0].manifest, task.training)


SETTINGS = [
    {"head": "apart"},
    {"head": "joint", "directions": 2},
    {"head": "exact"},
    {"head": "apart", "per_example": False},
    {"head": "apart", "directions": 2, "kind": "orthogonal"},
    {"head": "exact", "directions": 2, "per_example": False, "kind": "orthogonal"},
    {"estimator": "central", "head": "joint", "directions": 2, "per_example": False},
]


def test_a_record_of_another_format_is_refused(opened, changed):
    task, manifest = changed(mode="iteration"), opened[0].manifest
    data = bytearray(encode_record(StepRecord(1, 1, 3, ()), manifest, task.training))
    data[27] = 1
    with pytest.raises(ScalarError, match="a record is of format 1, this version of spry reads 0: update spry here"):
        next(decode_records(bytes(data)))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_published_step_is_the_clients_own_step(opened, changed, settings):
    task = changed(mode="iteration", **settings)
    manifest, weights = opened[0].manifest, opened[0].initial_adapter()
    report = sent(opened, task, weights, iteration=3, step=1)
    record = StepRecord(1, 1, 3, (Participant(task.seed, tuple(task.units), report),), report.head_gradient)
    (read,) = decode_records(encode_record(record, manifest, task.training))
    moved = changes(read, manifest, task.training)
    own = estimator(opened, task).gradient(batch_of(opened, task, 1), weights, 3).gradients
    assert set(moved) == set(own) == trained(manifest, task)
    head = split_head(report.head_gradient, manifest) if task.training.head == "exact" else {}
    for name, gradient in (own | head).items():  # halves keep three digits, and the head comes as it was read
        largest = np.abs(gradient).max()
        np.testing.assert_allclose(moved[name], -0.1 * gradient, atol=0.1 * largest * 3e-3)


@pytest.mark.parametrize("kind", SERVER_OPTIMIZERS)
@pytest.mark.parametrize("head", ["apart", "exact"])
def test_a_client_that_replays_holds_the_servers_weights(opened, changed, kind, head):
    """Two clients with shared and own units, and a third that takes no part; several steps of a stateful optimizer."""
    manifest = opened[0].manifest
    optimizers = ServerOptimizers(ServerOptimizer(kind), ServerOptimizer(kind, learning_rate=0.03))
    held = [([0, 2], 1), ([2, 3], 2)]
    tasks = [changed(mode="iteration", head=head, units=units, cut=1, seed=seed) for units, seed in held]
    server, state = opened[0].initial_adapter(), {}
    client, own_state = opened[0].initial_adapter(), {}
    heads = frozenset(parameter.name for parameter in manifest.head)
    log = b""
    for iteration in range(4):
        reports = [sent(opened, task, server, iteration, step=number) for number, task in enumerate(tasks)]
        parts = tuple(Participant(t.seed, tuple(t.units), as_published(r)) for t, r in zip(tasks, reports, strict=True))
        mean = None
        if head == "exact":
            share = np.array([r.examples for r in reports], np.float64)
            mean = np.average([r.head_gradient for r in reports], axis=0, weights=share).astype(np.float32)
        record = StepRecord(iteration + 1, 1, iteration, parts, mean)
        server_step(server, changes(record, manifest, tasks[0].training), state, optimizers, heads)
        log += encode_record(record, manifest, tasks[0].training)
    for record in decode_records(log):
        names = replay(record, client, own_state, manifest, tasks[0].training, optimizers)
        assert names == trained(manifest, replace(tasks[0], units=[0, 2, 3]))
    for name, value in server.items():
        np.testing.assert_allclose(client[name], value, atol=1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(own_state[name], value, atol=1e-6)
    untouched = {p.name for p in manifest.units[1].parameters}
    assert all((server[n] != opened[0].initial_adapter()[n]).any() == (n not in untouched) for n in server)


def test_an_uplink_of_eight_examples_is_small(opened, changed):
    task = changed(mode="iteration", head="apart")
    report = sent(opened, task, opened[0].initial_adapter())
    assert math.isfinite(report.loss)
    assert len(encode_report(report)) == 12 + 2 * 2 * 4


@pytest.mark.parametrize("size", [1, 2, 127, 128, 770])
def test_a_head_goes_in_two_bits_a_number(opened, size):
    """A normal gradient loses an eighth of its square, and one of a bias of two classes nothing."""
    manifest = replaced(opened[0].manifest, head=(Parameter("head", (size,)),))
    gradient = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    if size <= 2:
        gradient = np.float32(0.3) * np.array([1, -1], np.float32)[:size]
    data = encode_report(ScalarReport(0.5, 1, np.ones((1, 1), np.float32), head_gradient=gradient))
    found = decode_report(data, manifest, Training(mode="iteration", head="exact", batch=1)).head_gradient
    assert ((found - gradient) ** 2).sum() <= (1e-12 if size <= 2 else 0.14 * (gradient**2).sum())
    assert len(data) == 14 + 4 * -(-size // 128) + -(-size // 4)


@pytest.mark.parametrize("directions", [31, 64, 2047])
def test_reports_of_few_and_of_many_derivatives(opened, directions):
    training = Training(mode="iteration", head="apart", directions=directions, batch=8)
    jvp = np.random.default_rng().standard_normal((2, directions, 8), np.float32)
    data = encode_report(ScalarReport(0.5, 7, jvp[0], jvp[1]))
    found = decode_report(data, opened[0].manifest, training)
    np.testing.assert_allclose([found.jvp, found.head_jvp], jvp, atol=1e-2)
    assert found.examples == 7


def test_a_report_of_too_many_derivatives_is_refused():
    with pytest.raises(ScalarError, match="at most 16383 derivatives"):
        encode_report(ScalarReport(0.0, 8, np.zeros((2048, 8), np.float32)))

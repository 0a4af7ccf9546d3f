"""Test what the programs of whole exports compute: PEFT's losses, and derivatives of its model."""

import numpy as np
import pytest
import torch
import transformers

from edge_client.bundle.folder import Bundle
from edge_client.data.batches import Batch
from edge_client.estimators.registry import estimator_for
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.passes import Passes
from edge_client.training.session import programs_of
from edge_client.wire.protocol import ServerOptimizers, Task, Training
from export.adapt.adapter import ADAPTERS
from tests.adapters import everywhere
from tests.export.trained import BATCH, LENGTH, Trained

CLOSE = {"rtol": 2e-4, "atol": 2e-6}
RUNTIMES = ("onnx", "executorch", "torchscript")


@pytest.fixture(scope="module")
def trained(bundle, model_folder, tmp_path_factory):
    return Trained(bundle, model_folder, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def runtime(bundle):
    with open_runtime("onnx", bundle, threads=1) as opened:
        yield opened


def test_forward_is_the_models(trained, runtime):
    found = trained.stepper(runtime).forward(trained.tokens, trained.labels, trained.weights)
    np.testing.assert_allclose(found.loss, trained.losses().detach(), **CLOSE)
    np.testing.assert_allclose(found.logits, trained.logits, **CLOSE)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cut", ["block.0", "block.1", "head"])
def test_a_step_from_every_cut(trained, runtime, cut, count):
    stepper = trained.stepper(runtime, count)
    first = stepper.chain.position(cut)
    along = trained.directions(first, count)
    shares = np.array([0.25, 0.75], np.float32)
    given = trained.tokens, trained.labels, trained.weights, along, cut, shares
    step = stepper.along(*given)
    assert step.jvp.shape == (count, BATCH)
    for k in range(count):
        expected = trained.jvp({name: value[k * BATCH : (k + 1) * BATCH] for name, value in along.items()})
        np.testing.assert_allclose(step.jvp[k], expected, **CLOSE)
    gradient = trained.gradient(shares)
    assert step.gradients.keys() == {parameter.name for parameter in trained.manifest.head}
    for name, value in step.gradients.items():
        np.testing.assert_allclose(value, gradient[name], **CLOSE)

    hidden = stepper.prefix(trained.tokens, trained.weights, cut)
    again = stepper.along(*given, hidden=hidden)
    np.testing.assert_array_equal(again.jvp, step.jvp)
    np.testing.assert_array_equal(again.loss, step.loss)


@pytest.mark.parametrize("cut", ["block.0", "block.1", "head"])
def test_a_step_of_scalars_from_every_cut(trained, runtime, cut):
    stepper = trained.stepper(runtime)
    along = trained.directions(stepper.chain.position(cut), 1, head=True)
    found = stepper.along(trained.tokens, trained.labels, trained.weights, along, cut, scalar_head=True)
    head = {parameter.name for parameter in trained.manifest.head}
    units = {name: value for name, value in along.items() if name not in head}
    np.testing.assert_allclose(found.jvp[0], trained.jvp(units), **CLOSE)
    np.testing.assert_allclose(found.head_jvp[0], trained.jvp({name: along[name] for name in head}), **CLOSE)


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("cut", ["block.0", "block.1", "head"])
def test_the_exact_gradient_from_every_cut(trained, runtime, cut, low_memory):
    stepper = trained.stepper(runtime)
    shares = np.array([0.4, 0.6], np.float32)
    given = trained.tokens, trained.labels, trained.weights, cut, shares
    found = stepper.exact(*given, low_memory=low_memory)
    expected = trained.gradient(shares)
    later = trained.directions(stepper.chain.position(cut), 1, head=True)
    assert found.gradients.keys() == later.keys()
    for name, value in found.gradients.items():
        np.testing.assert_allclose(value, expected[name], **CLOSE)


@pytest.fixture(scope="module", params=RUNTIMES)
def anywhere(request, exported_once, model_folder, tmp_path_factory):
    """A runtime's name, its bundle beside PEFT, and the runtime."""
    folder = exported_once(f"two-directions-{request.param}", runtimes=(request.param,), directions=(2,), verify="none")
    trained = Trained(folder, model_folder, tmp_path_factory.mktemp("anywhere"), seed=11)
    with open_runtime(request.param, folder, threads=1) as opened:
        yield request.param, trained, opened


@pytest.mark.parametrize(("cut", "end"), [("block.0", "block.0"), ("block.0", "block.1"), ("block.0", "head")])
def test_a_step_that_goes_back_a_part_of_the_way(anywhere, cut, end):
    name, trained, runtime = anywhere
    count = 2
    stepper = trained.stepper(runtime, count, name)
    along = trained.directions(stepper.chain.position(cut), count, end=stepper.chain.position(end))
    shares = np.array([0.3, 0.7], np.float32)
    found = stepper.mixed(trained.tokens, trained.labels, trained.weights, along, cut, end, shares)
    for k in range(count):
        expected = trained.jvp({key: value[k * BATCH : (k + 1) * BATCH] for key, value in along.items()})
        np.testing.assert_allclose(found.jvp[k], expected, rtol=5e-4, atol=5e-6)
    gradient = trained.gradient(shares)
    assert found.behind.gradients.keys() == gradient.keys() - along.keys()
    for key, value in found.behind.gradients.items():
        np.testing.assert_allclose(value, gradient[key], rtol=5e-4, atol=5e-6)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_a_mixed_estimate_over_all_directions_is_the_gradient(anywhere, blocks):
    """Three examples on programs for two: orthogonal directions, as many as a unit has numbers, leave no noise."""
    name, trained, runtime = anywhere
    (size,) = {unit.size for unit in trained.manifest.units}
    rows, weight = [0, 1, 1, 0], np.array([1, 1, 1, 0], np.float32)
    tokens = {key: value[rows] for key, value in trained.tokens.items()}
    batch = Batch(0, tokens, trained.labels[rows], weight)
    expected = trained.gradient(np.array([1 / 3, 2 / 3], np.float32))
    for unit in (0, 3):
        task = task_of([unit], name, estimator="mixed", exact_blocks=blocks, directions=size)
        passes = Passes(trained.manifest, runtime, task, cache_bytes=1 << 20)
        found = estimator_for(trained.manifest, task, passes).gradient(batch, trained.weights, 0)
        for key, gradient in found.gradients.items():
            np.testing.assert_allclose(gradient, expected[key], rtol=2e-3, atol=2e-5)


def task_of(units, runtime, **training):
    """Orthogonal directions, which leave no noise in one unit's gradient where they are as many as it has numbers."""
    settings = Training(batch=4, length=LENGTH, kind="orthogonal", **training)
    return Task(
        id="task", job="job", job_name="job", round=1, seed=5, units=units, cut=1, bundle="", runtime=runtime,
        version=0, iteration=0, seconds=0.0, training=settings, optimizers=ServerOptimizers(), batch=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def albert(exporting, tmp_path_factory):
    """A bundle whose blocks are one."""
    base = tmp_path_factory.mktemp("models") / "tiny-albert"
    config = transformers.AlbertConfig(
        vocab_size=90, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AlbertModel(config).save_pretrained(base)
    return Bundle.open(exporting(source=str(base), directions=(2,), verify="none"))


@pytest.mark.parametrize(("blocks", "ran"), [(1, {"enter", "dual"}), (2, set())])
def test_what_blocks_share_has_one_kind_of_gradient(albert, blocks, ran):
    """Tangents enter in each of ALBERT's blocks, and the way back ends at the head, or at the first."""
    manifest, random = albert.manifest, np.random.default_rng(3)
    units = [0]
    assert {unit.segments for unit in manifest.units} == {("block.0", "block.1")}
    tokens = {name: np.ones((4, LENGTH), np.int64) for name in manifest.inputs}
    tokens |= {"input_ids": random.integers(0, 90, (4, LENGTH)), "token_type_ids": np.zeros((4, LENGTH), np.int64)}
    batch = Batch(0, tokens, random.integers(0, 3, 4), np.ones(4, np.float32))
    initial = sorted(albert.initial_adapter().items())
    weights = {name: value + random.normal(0, 0.1, value.shape).astype(np.float32) for name, value in initial}
    mixed = task_of(units, "onnx", estimator="mixed", exact_blocks=blocks, directions=manifest.units[0].size)
    exact = task_of(units, "onnx", estimator="exact")
    with open_runtime("onnx", albert.folder, threads=1) as runtime:
        assert {program.kind for program in programs_of(manifest, mixed)} - {"plain", "vjp"} == ran
        found, expected = (
            estimator_for(manifest, task, Passes(manifest, runtime, task)).gradient(batch, weights, 0).gradients
            for task in (mixed, exact)
        )
    assert found.keys() == expected.keys() < weights.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=2e-3, atol=2e-5)


def test_the_other_shape(bundle, model_folder, runtime, tmp_path):
    single = Trained(bundle, model_folder, tmp_path, batch=1)
    found = single.stepper(runtime).forward(single.tokens, single.labels, single.weights)
    np.testing.assert_allclose(found.loss, single.losses().detach(), **CLOSE)
    along = single.directions(1, 2)
    step = single.stepper(runtime, 2).along(single.tokens, single.labels, single.weights, along, "block.0")
    expected = single.jvp({name: value[1:] for name, value in along.items()})
    np.testing.assert_allclose(step.jvp[1], expected, **CLOSE)


@pytest.mark.parametrize("method", sorted({*ADAPTERS} - {"lora"}))
def test_every_adapter_loads_with_peft(exporting, model_folder, tmp_path, method):
    """Keys, shapes and configuration are PEFT's own: a server's result is an ordinary adapter folder."""
    folder = exporting(adapter=everywhere(method, rank=2), cuts=1, verify="none")
    trained = Trained(folder, model_folder, tmp_path)
    assert trained.manifest.adapter.method == method
    assert bool(trained.manifest.units) == (method != "classifier")
    with open_runtime("onnx", folder, threads=1) as opened:
        found = trained.stepper(opened).forward(trained.tokens, trained.labels, trained.weights)
    np.testing.assert_allclose(found.loss, trained.losses().detach(), **CLOSE)
    np.testing.assert_allclose(found.logits, trained.logits, **CLOSE)


def test_spans(exporting, model_folder, tmp_path):
    folder = exporting(task="qa", cuts=1, verify="none")
    trained = Trained(folder, model_folder, tmp_path)
    assert trained.manifest.model.labels == ()
    chain = [(segment.name, segment.first_block, segment.last_block) for segment in trained.manifest.segments]
    assert chain[1:-1] == [("block.0", 0, 2)], "with one cut all blocks make one segment"
    assert {unit.segments for unit in trained.manifest.units} == {("block.0",)}
    with open_runtime("onnx", folder, threads=1) as opened:
        stepper = trained.stepper(opened)
        found = stepper.forward(trained.tokens, trained.labels, trained.weights)
        np.testing.assert_allclose(found.loss, trained.losses().detach(), **CLOSE)
        assert found.logits.shape == (BATCH, LENGTH, 2)
        along = trained.directions(1, 1)
        step = stepper.along(trained.tokens, trained.labels, trained.weights, along, 1)
        np.testing.assert_allclose(step.jvp[0], trained.jvp(along), **CLOSE)


def test_language_models_have_no_head(exporting, tmp_path):
    """A whole checkpoint of GPT-2: its task layer is the model's own and stays frozen."""
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=32, vocab_size=90, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "tiny-gpt2")
    folder = exporting(source=str(tmp_path / "tiny-gpt2"), task="causal-lm", cuts=1)
    bundle = Bundle.open(folder)
    assert (bundle.manifest.head, bundle.manifest.tokenizer) == ((), None)
    assert bundle.manifest.inputs == ("input_ids", "attention_mask")
    assert all(check.passed for check in bundle.manifest.verification)
    assert len(bundle.manifest.units) == 2  # GPT-2 projects queries, keys and values in one layer


@pytest.mark.parametrize(("precision", "rough"), [("int8", 0.1), ("int4", 0.6)])
def test_quantized(exported_once, bundle, model_folder, tmp_path, precision, rough):
    """Near the float model; how near the quantized one is stands in the report that the export checks."""
    folder = exported_once(f"rounded-{precision}", precision=precision, directions=(1, 2))
    trained = Trained(folder, model_folder, tmp_path)
    spec = trained.manifest.runtimes["onnx"]
    assert spec.precision == precision
    assert spec.weights_bytes < Bundle.open(bundle).manifest.runtimes["onnx"].weights_bytes
    found, expected = [], []
    with open_runtime("onnx", folder, threads=1) as opened:
        stepper = trained.stepper(opened, 2)
        for seed in range(8):
            along = trained.directions(1, 2, seed=seed)
            step = stepper.along(trained.tokens, trained.labels, trained.weights, along, 1)
            found.append(step.jvp)
            expected += [trained.jvp({n: v[k * BATCH : (k + 1) * BATCH] for n, v in along.items()}) for k in range(2)]
    error = np.concatenate(found) - expected
    assert np.linalg.norm(error) < rough * np.linalg.norm(expected)
    np.testing.assert_allclose(step.loss, trained.losses().detach(), rtol=rough)

"""The features that the head's plain program tells: the logits are a product of them, in every runtime."""

import numpy as np
import pytest

from edge_client.bundle.folder import Bundle
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.stepper import Stepper
from export.write.description import describe, structure_of
from tests.export.models import Chain


@pytest.mark.parametrize("runtime", ["onnx", "executorch", "torchscript"])
def test_logits_are_a_product_of_the_features(exported_once, runtime):
    options = {"adapter": AdapterOptions("classifier"), "verify": "none"}
    folder = exported_once(f"features-{runtime}", runtimes=(runtime,), **options)
    bundle = Bundle.open(folder)
    with open_runtime(runtime, folder) as opened:
        spec, weights = bundle.manifest.features, bundle.initial_adapter()
        generator = np.random.default_rng()
        weights[spec.bias] = generator.standard_normal(weights[spec.bias].shape).astype(np.float32)
        tokens = {name: np.ones((2, 8), np.int64) for name in bundle.manifest.inputs}
        tokens["input_ids"] = generator.integers(5, 30, (2, 8))
        step = Stepper(bundle.manifest, opened, runtime, 2, 8).forward(tokens, np.zeros(2, np.int64), weights)
    assert step.features.shape == (2, 32)
    np.testing.assert_allclose(step.features @ weights[spec.weight].T + weights[spec.bias], step.logits, atol=1e-5)
    assert 0.2 < spec.square / np.square(step.features).sum(1).mean() < 5


@pytest.mark.parametrize(
    ("architecture", "task", "layer"),
    [
        ("bert", "seq-cls", "classifier"),
        ("roberta", "seq-cls", "classifier.out_proj"),
        ("llama", "seq-cls", "score"),
        ("bert", "qa", "qa_outputs"),
    ],
)
def test_the_layer_is_the_last_of_the_head(architecture, task, layer):
    features = described(architecture, task).features
    assert features.weight == f"base_model.model.{layer}.weight"
    assert features.bias == ("" if layer == "score" else f"base_model.model.{layer}.bias")


def test_a_language_model_has_no_head_to_measure():
    assert described("llama", "causal-lm").features is None


def described(architecture, task):
    chain = Chain.build(architecture, task, "lora", batch=2, length=8)
    return describe(chain.loaded, chain.adapted, structure_of(chain.segments), "lora")

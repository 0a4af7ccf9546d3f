"""A task layer behind standardized features: the same function, and plain weights in the adapter it ends in."""

import pytest
import torch

from edge_client.bundle.adapters import SCALE, folded
from export.adapt.heads import standardize_head
from export.adapt.wrapping import adapt, head_modules
from export.check.reference import Reference
from export.errors import ExportError
from export.model.samples import sample_inputs
from tests.adapters import everywhere
from tests.export.models import projections, tiny

HEADS = {
    ("bert", "seq-cls"): "classifier",
    ("roberta", "seq-cls"): "classifier.out_proj",  # behind a layer that is trained too
    ("gpt2", "seq-cls"): "score",  # without a bias
    ("bert", "qa"): "qa_outputs",  # of each token
}


@pytest.fixture(params=HEADS, ids="-".join)
def case(request):
    """A model, its task layer's name, and examples."""
    loaded = tiny(*request.param)
    return loaded, HEADS[request.param], [sample_inputs(loaded, 8, 12, seed) for seed in range(3)]


def entering(loaded, name, batches):
    """What the layer multiplies its weight with, of all tokens that are no filling: the weight's gradient tells."""
    layer = loaded.model.get_submodule(name)
    seen = []
    handle = layer.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    for batch in batches:
        loaded.model(**{key: value for key, value in batch.items() if key != "labels"})
    handle.remove()
    real = [states[batch["attention_mask"].bool()] if states.ndim > 2 else states
            for states, batch in zip(seen, batches, strict=True)]  # fmt: skip
    features = torch.cat(real)
    weight = layer.weight.detach().clone().requires_grad_()
    multiplied = []
    for row in features:
        result = torch.func.functional_call(layer, {"weight": weight}, (row,))
        multiplied.append(torch.autograd.grad(result[0], weight)[0][0])
    return torch.stack(multiplied)


def standardized(loaded, batches):
    standardize_head(loaded, head_modules(loaded.model, loaded.task), batches)


def test_features_come_centred_and_of_even_size(case):
    loaded, name, batches = case
    standardized(loaded, batches)
    features = entering(loaded, name, batches)
    centred = getattr(loaded.model.get_submodule(name), "bias", None) is not None
    assert (features.mean(0).abs().max() < 1e-4) == centred
    torch.testing.assert_close(features.square().mean(0).sqrt(), torch.ones(features.shape[1]), atol=1e-3, rtol=0)


def test_at_first_nothing_changes(case):
    loaded, _, batches = case
    inputs = {key: value for key, value in batches[0].items() if key != "labels"}
    before = loaded.model(**inputs)[0]
    standardized(loaded, batches)
    torch.testing.assert_close(loaded.model(**inputs)[0], before, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("architecture", "task"), HEADS, ids="-".join)
def test_the_fold_is_a_plain_task_layer(architecture, task):
    where = projections(architecture, task)
    options = everywhere(rank=2)
    loaded, plain = tiny(architecture, task), tiny(architecture, task)
    standardized(loaded, [sample_inputs(loaded, 8, 12, seed=3)])
    adapted = adapt(loaded, options, projections=where)
    assert any(name.endswith(f".{SCALE}") for name in adapted.initial)
    trained = {
        slot.name: adapted.initial[slot.name] + torch.randn(adapted.initial[slot.name].shape)
        for slot in adapted.slots.values()
    }
    whole = folded({name: value.numpy() for name, value in (adapted.initial | trained).items()})
    expected = adapt(plain, options, projections=where)
    assert set(whole) == set(expected.initial)
    inputs = sample_inputs(plain, 4, 12, seed=5)
    torch.testing.assert_close(
        Reference(expected, plain.task).losses(
            inputs, {slot.name: torch.from_numpy(whole[slot.name]) for slot in expected.slots.values()}
        ),
        Reference(adapted, loaded.task).losses(inputs, trained),
        atol=1e-4,
        rtol=1e-4,
    )


def test_a_feature_that_hardly_moves_is_not_blown_up():
    loaded = tiny("bert", "seq-cls")
    pooler = loaded.model.bert.pooler.dense
    with torch.no_grad():
        pooler.weight[0] = 0  # it is tanh(bias) for all examples
    standardized(loaded, [sample_inputs(loaded, 8, 12, seed=3)])
    scale = loaded.model.classifier.scale
    assert scale[0] == scale.max() < 11 * scale[1:].median()
    assert loaded.model.classifier.centre[0] == pytest.approx(float(torch.tanh(pooler.bias[0])), abs=1e-6)


def test_examples_that_are_all_the_same_are_refused():
    loaded = tiny("bert", "seq-cls")
    batch = {name: value[:1].expand(4, *value.shape[1:]) for name, value in sample_inputs(loaded, 4, 12, 0).items()}
    with pytest.raises(ExportError, match="the task layer classifier gets the same features for all of the examples"):
        standardized(loaded, [batch])
    with pytest.raises(ExportError, match="no linear layer whose features could be centred"):
        standardize_head(loaded, ["pooler"], [batch])

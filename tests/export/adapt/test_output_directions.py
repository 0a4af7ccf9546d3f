"""Directions of bottlenecks: they hold more of a true gradient than chance."""

import pytest
import torch

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.output_directions import output_directions
from export.adapt.wrapping import adapt
from export.errors import ExportError
from export.model.samples import sample_inputs
from tests.export.models import projections, tiny

RANK = 4


def layers_of(loaded, architecture):
    found = projections(architecture, "seq-cls")
    return [
        name for name in (*found.query, *found.value) if isinstance(loaded.model.get_submodule(name), torch.nn.Linear)
    ]


def gradients(loaded, layers):
    """Return the loss's gradients by whole weights, on other inputs than those of the directions."""
    parameters = [loaded.model.get_submodule(name).weight.requires_grad_() for name in layers]
    inputs = sample_inputs(loaded, 16, 12, seed=7)
    loss = torch.nn.functional.cross_entropy(loaded.model(**{k: v for k, v in inputs.items() if k != "labels"}).logits,
                                             inputs["labels"])  # fmt: skip
    found = torch.autograd.grad(loss, parameters)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return dict(zip(layers, found, strict=True))


def held(gradient, out):
    """The part of a gradient's square in these directions."""
    return float((out.T @ gradient).square().sum() / gradient.square().sum())


@pytest.mark.parametrize("architecture", ["bert", "roberta", "llama"])
def test_they_hold_much_of_the_gradient(architecture):
    loaded = tiny(architecture, "seq-cls")
    layers = layers_of(loaded, architecture)
    found = output_directions(loaded, layers, RANK, (), seed=1)
    by_directions, by_chance = [], []
    for name, gradient in gradients(loaded, layers).items():
        out = found[name]
        torch.testing.assert_close(out.T @ out, torch.eye(RANK), atol=1e-5, rtol=0)
        by_directions.append(held(gradient, out))
        by_chance.append(RANK / len(gradient))
    assert sum(by_directions) > 1.2 * sum(by_chance)  # of random weights, which are the least telling


def test_the_model_is_left_as_it_was():
    loaded = tiny("bert", "seq-cls")
    before = {name: parameter.clone() for name, parameter in loaded.model.named_parameters()}
    first, second = (output_directions(loaded, layers_of(loaded, "bert"), RANK, (), seed=3) for _ in range(2))
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(before[name], parameter), name
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(module._forward_hooks for module in loaded.model.modules())


def test_a_rank_beyond_the_layer_is_refused():
    with pytest.raises(ExportError, match="rank 500 is more than the"):
        adapt(
            tiny("bert", "seq-cls"), AdapterOptions("bottleneck", rank=500), projections=projections("bert", "seq-cls")
        )

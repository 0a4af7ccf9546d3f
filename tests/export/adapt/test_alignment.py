"""Aligned bases: they hold far more of a true gradient than chance, and than the weight's own singular vectors."""

import pytest
import torch

from edge_client.bundle.adapters import CORE, FRAME, folded
from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.alignment import bases
from export.adapt.wrapping import adapt
from export.check.reference import Reference
from export.errors import ExportError
from export.model.samples import sample_inputs
from tests.adapters import everywhere
from tests.export.models import projections, tiny

RANK = 4


def layers_of(loaded, architecture):
    found = projections(architecture, "seq-cls")
    return [
        name for name in (*found.query, *found.value) if isinstance(loaded.model.get_submodule(name), torch.nn.Linear)
    ]


def gradients(loaded, layers):
    """Of the loss by whole weights, on other inputs than the bases are found with."""
    parameters = [loaded.model.get_submodule(name).weight.requires_grad_() for name in layers]
    inputs = sample_inputs(loaded, 16, 12, seed=7)
    loss = torch.nn.functional.cross_entropy(loaded.model(**{k: v for k, v in inputs.items() if k != "labels"}).logits,
                                             inputs["labels"])  # fmt: skip
    found = torch.autograd.grad(loss, parameters)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return dict(zip(layers, found, strict=True))


def held(gradient, out, into):
    """The part of a gradient's square between two bases."""
    return float((out.T @ gradient @ into).square().sum() / gradient.square().sum())


@pytest.mark.parametrize("architecture", ["bert", "roberta", "llama"])
def test_they_hold_much_of_the_gradient(architecture):
    loaded = tiny(architecture, "seq-cls")
    layers = layers_of(loaded, architecture)
    found = bases(loaded, layers, RANK, seed=1)
    by_bases, by_chance = [], []
    for name, gradient in gradients(loaded, layers).items():
        out, into = found[name]
        torch.testing.assert_close(out.T @ out, torch.eye(RANK), atol=1e-5, rtol=0)
        torch.testing.assert_close(into.T @ into, torch.eye(RANK), atol=1e-5, rtol=0)
        by_bases.append(held(gradient, out, into))
        by_chance.append(RANK * RANK / gradient.numel())
    assert sum(by_bases) > 1.5 * sum(by_chance)  # of random weights, which are the least telling


def test_the_model_is_left_as_it_was():
    loaded = tiny("bert", "seq-cls")
    before = {name: parameter.clone() for name, parameter in loaded.model.named_parameters()}
    first, second = (bases(loaded, layers_of(loaded, "bert"), RANK, seed=3) for _ in range(2))
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(before[name], parameter), name
    assert all(torch.equal(first[name].out, second[name].out) for name in first)
    assert not any(module._forward_hooks for module in loaded.model.modules())


def test_the_fold_is_the_trained_layer():
    loaded = tiny("bert", "seq-cls")
    adapted = adapt(loaded, AdapterOptions("aligned", rank=3), projections=projections("bert", "seq-cls"))
    cores = [slot.name for slot in adapted.slots.values() if f".{CORE}." in slot.name]
    assert len(cores) == 4
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(3, 3, generator=generator) for name in cores}
    initial = {name: value.numpy() for name, value in adapted.initial.items()}
    whole = folded(initial | {name: value.numpy() for name, value in values.items()})
    assert not any(f".{part}." in name for name in whole for part in (CORE, FRAME))
    plain = adapt(tiny("bert", "seq-cls"), everywhere(rank=3), projections=projections("bert", "seq-cls"))
    inputs = sample_inputs(loaded, 4, 12, seed=5)
    trained = {slot.name: adapted.initial[slot.name] for slot in adapted.slots.values()} | values
    expected = Reference(adapted, loaded.task).losses(inputs, trained)
    found = Reference(plain, loaded.task).losses(
        inputs, {name: torch.tensor(whole[name]) for name in plain_names(plain)}
    )
    torch.testing.assert_close(found, expected)


def plain_names(adapted):
    return [slot.name for slot in adapted.slots.values()]


def test_a_rank_beyond_the_layer_is_refused():
    with pytest.raises(ExportError, match="rank 500 is more than the"):
        adapt(tiny("bert", "seq-cls"), AdapterOptions("aligned", rank=500), projections=projections("bert", "seq-cls"))

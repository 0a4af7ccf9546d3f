"""The losses of tokens by a vocabulary layer in parts, beside whole logits differentiated by torch."""

import pytest
import torch
from torch.func import jvp
from torch.nn.functional import cross_entropy

from edge_client.bundle.manifest import DUAL, HEAD, IGNORED, PLAIN, VJP
from export.dual.builder import build
from export.graph import ops, vocabulary
from export.graph.slots import Role, slot_of, value_of
from tests.export.models import Chain

BATCH, TOKENS, WIDTH = 2, 5, 8


@pytest.fixture(params=[(1, 7, 8), (4, 7, 2), (4, 100, 32)], ids=lambda given: f"{given[0]} parts of {given[1]}")
def layer(request, monkeypatch):
    """A vocabulary layer, with parts of it."""
    count, rows, size = request.param
    monkeypatch.setattr(vocabulary, "LARGEST", size * WIDTH)
    monkeypatch.setattr(vocabulary, "SMALLEST", 1)
    weight = torch.randn(rows, WIDTH)
    parts = vocabulary.parts(rows, WIDTH)
    assert len(parts) == count
    return weight, [weight[first:last] for first, last in parts]


@pytest.fixture
def labels(layer):
    labels = torch.randint(len(layer[0]), (BATCH, TOKENS))
    labels[0, 2] = IGNORED
    return labels


def whole(weight, labels):
    """Losses of tokens by whole logits; what is ignored has some loss in parts, which nobody reads."""

    def losses(x):
        return cross_entropy((x @ weight.T).flatten(0, 1), labels.flatten(), reduction="none").reshape(labels.shape)

    return losses


def test_parts_are_the_whole_in_order(monkeypatch):
    monkeypatch.setattr(vocabulary, "LARGEST", 700)
    assert vocabulary.parts(64, 10) == [(0, 64)]
    assert vocabulary.parts(160, 10) == [(0, 64), (64, 128), (128, 160)]
    assert vocabulary.parts(159, 10) == [(0, 64), (64, 159)], "rows too few for a part of their own"
    assert vocabulary.parts(70, 100) == [(0, 32), (32, 70)], "however wide"


def test_losses_and_likeliest_entries(layer, labels):
    weight, parts = layer
    x = torch.randn(BATCH, TOKENS, WIDTH)
    losses, likeliest = vocabulary.token_losses(x, labels, parts)
    torch.testing.assert_close(losses * (labels >= 0), whole(weight, labels)(x))
    torch.testing.assert_close(likeliest, (x @ weight.T).argmax(-1))


@pytest.mark.parametrize("scale", [1.0, 100.0], ids=["logits of ones", "logits of hundreds"])
def test_tangents_of_several_directions(layer, labels, scale):
    weight, parts = layer
    x, tangent = scale * torch.randn(BATCH, TOKENS, WIDTH), torch.randn(3 * BATCH, TOKENS, WIDTH)
    losses, _, slopes = vocabulary.token_losses_along(x, tangent, labels, parts)
    torch.testing.assert_close(losses * (labels >= 0), whole(weight, labels)(x))
    for direction, own in enumerate(tangent.split(BATCH)):
        expected = jvp(whole(weight, labels), (x,), (own,))[1]
        found = slopes[direction * BATCH : (direction + 1) * BATCH] * (labels >= 0)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_gradients(layer, labels):
    weight, parts = layer
    x, arriving = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True), torch.rand(BATCH, TOKENS) * (labels >= 0)
    (expected,) = torch.autograd.grad(whole(weight, labels)(x), x, arriving)
    torch.testing.assert_close(vocabulary.token_losses_t(arriving, x, labels, parts), expected)
    (found,) = torch.autograd.grad(vocabulary.token_losses(x, labels, parts)[0], x, arriving)
    torch.testing.assert_close(found, expected)


def test_logits_that_are_given_whole(labels, layer):
    weight, _ = layer
    x, tangent = torch.randn(BATCH, TOKENS, WIDTH), torch.randn(BATCH, TOKENS, WIDTH)
    logits, along = x @ weight.T, tangent @ weight.T
    losses, likeliest = vocabulary.token_losses(logits, labels, [])
    torch.testing.assert_close(losses * (labels >= 0), whole(weight, labels)(x))
    torch.testing.assert_close(likeliest, logits.argmax(-1))
    slopes = vocabulary.token_losses_along(logits, along, labels, [])[2] * (labels >= 0)
    torch.testing.assert_close(slopes, jvp(whole(weight, labels), (x,), (tangent,))[1], rtol=1e-4, atol=1e-4)
    by_logits = vocabulary.token_losses_t((labels >= 0).float(), logits, labels, [])
    by_states = vocabulary.token_losses_t((labels >= 0).float(), x, labels, [weight])
    torch.testing.assert_close(by_logits @ weight, by_states)


# --- in a captured model ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["gpt2", "llama"])
def head(request, monkeypatch):
    monkeypatch.setattr(vocabulary, "LARGEST", 64 * 32)
    return Chain.build(request.param, "causal-lm", "lora", batch=2, length=6)


@pytest.mark.parametrize("kind", [PLAIN, DUAL, VJP])
def test_no_program_has_whole_logits(head, kind):
    program = build(head.segments[-1], kind, 2)
    assert program.segment == HEAD
    sizes = [value_of(node).shape[-1:] for node in program.graph.graph.nodes if hasattr(node.meta.get("val"), "shape")]
    assert (100,) not in sizes
    assert [slot.rows for slot in map(slot_of, program.stored) if slot.rows] == [(0, 64), (64, 100)]
    products = [node for node in program.graph.graph.nodes if node.target is ops.linear]
    assert len(products) == 2, "values and tangents share a product of each part"


def test_what_passes_through_more_than_the_layer_keeps_its_logits():
    """RoBERTa adds a bias to its logits; their losses come of them whole."""
    chain = Chain.build("roberta", "causal-lm", "lora", batch=2, length=6)
    program = build(chain.segments[-1], PLAIN, 1)
    assert all(slot.rows is None for slot in map(slot_of, program.stored) if slot.role is Role.FROZEN)

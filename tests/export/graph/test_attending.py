"""One query attends without keys and values of all tokens, and nothing else changes.

That derivatives stay the same is shown by `tests/export/test_architectures.py`, against torch.func.jvp and autograd.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

from export.graph import ops
from export.graph.attending import attend_by_heads
from export.graph.flops import count_flops
from export.graph.narrow import narrow
from export.graph.segments import block_calls
from export.graph.slots import value_of
from tests.export.graphs import captured, evaluate, text_of, toy
from tests.export.models import LAYERS, batch_of, tiny

BATCH, LENGTH = 2, 19
HEADS, SIZE, TOKENS = 2, 4, 5


def rows_of_last_block(found):
    calls = block_calls(found.graph, LAYERS)
    return {
        value_of(node).shape[1]
        for node, block in calls.items()
        if block == LAYERS - 1 and node.target in (ops.linear, ops.linear_t)
    }


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "albert", "electra"])
def test_the_last_block_multiplies_rows_of_heads(architecture):
    loaded = tiny(architecture, "seq-cls")
    inputs = batch_of(loaded, [LENGTH, 4], LENGTH)
    found = captured(loaded, BATCH, LENGTH)
    narrow(found)
    before, flops = evaluate(found, inputs), count_flops(found.graph)
    assert rows_of_last_block(found) == {1, LENGTH}
    attend_by_heads(found)
    torch.testing.assert_close(evaluate(found, inputs), before, rtol=1e-5, atol=1e-6)
    assert rows_of_last_block(found) == {1, 4}, "the query's row, and one of each head"
    assert count_flops(found.graph) < flops


def test_short_texts_keep_their_keys_and_values():
    """Four heads make four rows: three tokens are fewer."""
    found = captured(tiny("bert", "seq-cls"), BATCH, 3)
    narrow(found)
    before = text_of(found)
    attend_by_heads(found)
    assert text_of(found) == before


# --- attention of one's own ------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """The first token's query over all tokens; what differs from one model to another is told."""

    def __init__(self, shares, keys, values):
        super().__init__()
        torch.manual_seed(1)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.scale = nn.Parameter(torch.randn(8))
        self.shares, self.keys, self.values = shares, keys, values

    def forward(self, hidden):
        apart = [self.query(hidden[:, :1]), self.keys(self, hidden), self.values(self, hidden)]
        q, k, v = (rows.view(2, -1, HEADS, SIZE).transpose(1, 2) for rows in apart)
        return torch.matmul(self.shares(torch.matmul(q, k.transpose(2, 3))), v).transpose(1, 2).reshape(2, 8)


def plain(layer):
    return lambda model, hidden: getattr(model, layer)(hidden)


def softmax(scores):
    return functional.softmax(scores, -1)


KEYS, VALUES = plain("key"), plain("value")


def attended(shares=softmax, keys=KEYS, values=VALUES, layers=2):
    """Return how many of the layers all tokens still go through, with the same results."""
    found, inputs = toy(Attention(shares, keys, values).eval().requires_grad_(False))
    before = evaluate(found, inputs)
    assert products_of_tokens(found) == layers
    attend_by_heads(found)
    torch.testing.assert_close(evaluate(found, inputs), before)
    return products_of_tokens(found)


def products_of_tokens(found):
    weights = [
        node.args[1].name
        for node in found.graph.graph.nodes
        if node.target is ops.linear and value_of(node).shape[1:-1] == (TOKENS,)
    ]
    return len({weight for weight in weights if "key" in weight or "value" in weight})


def test_neither_keys_nor_values():
    assert attended() == 0


@pytest.mark.parametrize(
    "values",
    [
        lambda model, hidden: model.value(hidden) * model.scale,
        lambda model, hidden: model.value(hidden) * 3 + model.scale,
        lambda model, hidden: functional.linear(hidden, model.value.weight),
    ],
    ids=["scaled", "moved", "without a bias"],
)
def test_values_that_are_made_token_by_token(values):
    assert attended(values=values) == 0


@pytest.mark.parametrize(
    "values",
    [
        lambda model, hidden: torch.tanh(model.value(hidden)),
        lambda model, hidden: model.value(hidden) * model.value(hidden).sum(-1, keepdim=True),
        lambda model, hidden: model.value(hidden) + hidden,
        lambda model, hidden: model.value(hidden) + model.value(torch.tanh(hidden)),
        lambda model, hidden: model.value(hidden) + torch.arange(5.0)[None, :, None],
    ],
    ids=["curved", "squared", "past the layer", "of two kinds", "by place"],
)
def test_other_values_stay(values):
    assert attended(values=values) == 1


@pytest.mark.parametrize(
    "keys",
    [
        lambda model, hidden: torch.tanh(model.key(hidden)),
        lambda model, hidden: model.key(hidden) * model.scale,
        lambda model, hidden: model.key(hidden) + torch.arange(5.0)[None, :, None],
    ],
    ids=["curved", "scaled", "by place"],
)
def test_other_keys_stay(keys):
    assert attended(keys=keys) == 1


@pytest.mark.parametrize(
    "shares", [torch.sigmoid, lambda scores: functional.softmax(scores, 1)], ids=["of no sum", "over heads"]
)
def test_shares_that_do_not_come_to_one(shares):
    assert attended(shares=shares) == 1


def test_values_that_something_else_reads():
    assert attended(values=KEYS, layers=1) == 1

"""Test that several spellings of an op become one, with the eager module's results."""

import pytest
import torch
from torch import nn

from tests.export.graphs import evaluate, text_of, toy


def turned(hidden):
    """Compute what DeBERTa and MPNet do: a copy of a permuted value, read as it lies."""
    return hidden.permute(0, 2, 1).contiguous().view(2, 40)[:, :8]


def added_in_place(hidden):
    pooled = hidden.sum(1)
    pooled += hidden[:, 0]
    return pooled.mul_(hidden[:, 1])


def added_where_others_read(hidden):
    pooled = hidden.sum(1)
    before = pooled[:, :1]
    pooled += hidden[:, 0]
    return pooled + before


def added_to_scaled_scores(hidden):
    """As MPNet adds its positions."""
    narrow = hidden[:, :, :2]
    scores = torch.matmul(narrow, narrow.transpose(1, 2)) / 3
    scores += hidden[:, :, :5]
    return scores[:, 0].repeat(1, 2)[:, :8]


def changed_after_a_product_with_one(hidden):
    pooled = hidden.sum(1)
    copy = pooled * 1
    copy += hidden[:, 0]
    return pooled + copy


def scaled_product(hidden):
    return torch.baddbmm(hidden[:, :1, :1], hidden, hidden.transpose(1, 2), alpha=0.5)[:, 0].repeat(1, 2)[:, :8]


@pytest.mark.parametrize(
    ("pool", "gone", "there"),
    [
        (turned, "aten.view", "aten.reshape"),
        (added_in_place, "aten.add_", "aten.mul.Tensor"),
        (added_to_scaled_scores, "aten.add_", "aten.add.Tensor"),
        (changed_after_a_product_with_one, "aten.add_", "aten.mul.Tensor"),
        (scaled_product, "baddbmm", "aten.bmm"),
        (lambda hidden: sum(part[:, 0] for part in hidden.chunk(2, 1)), "aten.chunk", "split_with_sizes"),
        (lambda hidden: hidden.chunk(3, -1)[0].sum(1).repeat(1, 3)[:, :8], "aten.chunk", "split_with_sizes"),
        (lambda hidden: hidden.unbind(1)[-1] - hidden.unbind(1)[0], "unbind", "aten.select"),
    ],
)
@torch.no_grad()
def test_one_spelling(pool, gone, there):
    captured, inputs = toy(pool)
    assert gone not in text_of(captured)
    assert there in text_of(captured)
    _, logits = evaluate(captured, inputs)
    torch.testing.assert_close(logits, eager(captured, inputs, pool))


def eager(captured, inputs, pool):
    """The toy by hand, with its stored weights."""
    weights = captured.stored
    hidden = weights["table.weight"][inputs["input_ids"]]
    for layer in range(2):
        dense = f"layers.{layer}.dense"
        hidden = hidden + torch.tanh(hidden @ weights[f"{dense}.weight"].T + weights[f"{dense}.bias"])
    return pool(hidden) @ weights["head.weight"].T + weights["head.bias"]


@torch.no_grad()
def test_a_change_in_place_that_others_see_stays_one():
    captured, inputs = toy(added_where_others_read)
    assert "aten.add_" in text_of(captured)
    _, logits = evaluate(captured, inputs)
    torch.testing.assert_close(logits, eager(captured, inputs, added_where_others_read))


@torch.no_grad()
def test_a_product_with_a_transposed_weight_is_a_linear_layer():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixed = nn.Linear(8, 8, bias=False)

        def forward(self, hidden):
            return (hidden @ self.mixed.weight.T)[:, 0] + hidden[:, 1] @ self.mixed.weight.t()

    pool = Pool().requires_grad_(False)
    captured, inputs = toy(pool)
    assert "matmul" not in text_of(captured)
    _, logits = evaluate(captured, inputs)
    torch.testing.assert_close(logits, eager(captured, inputs, pool))

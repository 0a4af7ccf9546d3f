"""Each example's loss, beside the mean that torch takes of all that counts."""

import torch
from torch.nn.functional import cross_entropy

from edge_client.bundle.manifest import IGNORED
from export.tasks.registry import MODEL_TASKS


def logits(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_of_classes():
    given, labels = logits(3, 4), torch.tensor([2, 0, 3])
    found = MODEL_TASKS["seq-cls"].losses(given, labels, torch.ones(3, 5))
    torch.testing.assert_close(found, cross_entropy(given, labels, reduction="none"))


def test_of_a_span():
    given, labels = logits(3, 5, 2), torch.tensor([[1, 3], [0, 0], [IGNORED, IGNORED]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = MODEL_TASKS["qa"].losses(given, labels, mask)
    start, end = (cross_entropy(given[:1, :4, side], labels[:1, side]) for side in (0, 1))  # padding has no share
    torch.testing.assert_close(found[0], (start + end) / 2)
    start, end = (cross_entropy(given[1:2, :, side], labels[1:2, side]) for side in (0, 1))
    torch.testing.assert_close(found[1], (start + end) / 2)
    assert found[2] == 0


def test_of_next_tokens():
    given = logits(2, 5, 7)
    labels = torch.tensor([[1, 2, 3, IGNORED, IGNORED], [4, 5, 6, 0, 1]])
    found = MODEL_TASKS["causal-lm"].losses(given, labels, torch.ones(2, 5))
    for row, count in ((0, 3), (1, 5)):
        torch.testing.assert_close(found[row], cross_entropy(given[row, : count - 1], labels[row, 1:count]))

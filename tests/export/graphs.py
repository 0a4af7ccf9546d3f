"""Running captured graphs, and small modules to capture."""

from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from export.graph.capture import capture
from export.graph.captured import Captured
from export.graph.editing import copy_of, module_of
from export.graph.slots import Role, slot_of
from export.model.loading import Loaded
from export.tasks.registry import MODEL_TASKS
from tests.export.models import tiny


def captured(loaded: Loaded, batch: int, length: int) -> Captured:
    return capture(loaded.model, loaded.task, loaded.example_inputs(batch, length), {})


_once = cache(lambda architecture, task, batch, length: captured(tiny(architecture, task), batch, length))


def captured_tiny(architecture: str, task: str, batch: int, length: int) -> Captured:
    """Return a graph of one's own of a tiny model, which is captured once."""
    first: Captured = _once(architecture, task, batch, length)
    return Captured(module_of(copy_of(first.graph.graph)), dict(first.stored))


def evaluate(captured: Captured, inputs: dict[str, Tensor]) -> list[Tensor]:
    values = []
    for node in captured.graph.graph.nodes:
        if node.op == "placeholder":
            slot = slot_of(node)
            values.append(inputs[slot.name] if slot.role is Role.INPUT else captured.stored[slot.name])
    return list(captured.graph(*values))


def text_of(captured: Captured) -> str:
    return str(captured.graph.graph)


class Layer(nn.Module):
    """A residual feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.tanh(self.dense(hidden))


class Toy(nn.Module):
    """Two layers without attention and a head of one's choice; called like a classifier of Hugging Face."""

    def __init__(self, pool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(8, 3)
        self.pool = pool

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        hidden = self.table(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return SimpleNamespace(logits=self.head(self.pool(hidden)))


def toy(pool) -> tuple[Captured, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "input_ids": torch.randint(20, (2, 5), generator=generator),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
        "labels": torch.tensor([0, 2]),
    }
    model = Toy(pool).eval().requires_grad_(False)
    return capture(model, MODEL_TASKS["seq-cls"], inputs, {}), inputs

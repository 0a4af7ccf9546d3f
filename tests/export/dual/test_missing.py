"""Test what the user of a model with an unknown op is told, and what a rule of one's own takes."""

import re

import pytest
import torch
from torch import nn

from export.dual.interpreter import Directions, Dual, DualInterpreter
from export.dual.rule import TANGENTS, tangent_of
from export.errors import ExportError, MissingRuleError
from export.graph.capture import capture
from export.graph.captured import Captured
from export.graph.slots import Role, Slot
from export.tasks.registry import MODEL_TASKS

aten = torch.ops.aten


class Softplus(nn.Module):
    def forward(self, x):
        return aten.logaddexp.default(x, torch.zeros(4))


class Classifier(nn.Module):
    """A model with an op that no rule covers, in a module with a name."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.activation = Softplus()
        self.score = nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask):
        hidden = self.activation(self.embedding(input_ids) * self.scale)
        return type("Output", (), {"logits": self.score(hidden[:, 0])})


@pytest.fixture
def captured():
    model = Classifier()
    inputs = {
        "input_ids": torch.ones(2, 3, dtype=torch.int64),
        "attention_mask": torch.ones(2, 3, dtype=torch.int64),
        "labels": torch.zeros(2, dtype=torch.int64),
    }
    return capture(model, MODEL_TASKS["seq-cls"], inputs, {model.scale.data_ptr(): Slot(Role.ADAPTER, "scale")})


def run(captured: Captured):
    duals = []
    for node in captured.graph.graph.nodes:
        if node.op != "placeholder":
            continue
        slot, value = node.meta["slot"], node.meta["val"]
        value = captured.stored.get(slot.name, torch.ones(value.shape, dtype=value.dtype))
        tangent = torch.ones(2, *value.shape) if slot.role is Role.ADAPTER else None
        duals.append(Dual(value, tangent, slot.role is Role.INPUT))
    return DualInterpreter(captured.graph, Directions(1, 2)).run(*duals)


def test_the_error_names_the_op_its_module_and_where_to_add_a_rule(captured):
    with pytest.raises(MissingRuleError) as caught:
        run(captured)
    message = str(caught.value)
    assert isinstance(caught.value, ExportError)
    assert "aten.logaddexp.default" in message
    assert re.search(r"model\.activation \(.*Softplus\)", message)
    assert "export/dual/rules" in message
    assert "\n" not in message
    assert "tests/export/dual" in message


def test_a_rule_takes_a_few_lines(captured, monkeypatch):
    monkeypatch.setitem(TANGENTS, aten.logaddexp.default, None)

    @tangent_of(aten.logaddexp.default)
    def _logaddexp(directions, result, x, y):
        return directions.scale(x.tangent, torch.exp(x.value - result))

    loss, _ = run(captured)
    assert loss.tangent.shape == (2,)

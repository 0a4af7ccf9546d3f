"""`spry simulate` with a language model that learns answers."""

import json
import random

import numpy as np
import pytest

from edge_client.commands.cli import run
from tests import chats, shapes
from tests.server.rounds.outcome.test_evaluation import losses_by_transformers

STILL = "training.learning_rate=1e-12"


def short(rng: random.Random, count: int) -> list[dict]:
    """Conversations of at most 32 tokens."""
    said = (chats.conversation(rng, turns=1) for _ in range(2000))
    fitting = [{"messages": one} for one in said if sum(len(message["content"]) for message in one) < 14]
    return fitting[:count]


@pytest.mark.parametrize(("packed", "shape"), [("false", shapes.instruction), ("true", shapes.talk)])
def test_conversations_are_learnt_and_scored_as_on_devices(packed, shape, talker_folder, tmp_path):
    rng = random.Random()
    rows = short(rng, 15)
    for name, part in (("train", rows[:10]), ("test", rows[10:])):
        lines = (json.dumps(shape(row["messages"])) for row in part)
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    arguments = [
        "simulate", "--model", str(talker_folder), "--data", str(tmp_path), "--task", "causal-lm", "--clients", "2",
        "--per-round", "2", "--rounds", "1", "--batch", "2", "--length", "64", "--set", f"training.pack={packed}",
        "--set", STILL, "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    assert run(arguments) == 0
    (line,) = map(json.loads, (tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    losses, right = losses_by_transformers(talker_folder, [row["messages"] for row in rows[10:]])
    assert line["test_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert line["perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    assert line["accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    assert (line["examples"] < 8) == (packed == "true")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["adapter"]["last_blocks"], config["numbers"]["units"]) == (0, 4), "both blocks, as an export has it"

"""`spry simulate` with a language model that learns answers."""

import json
import random

import numpy as np
import pytest

from edge_client.commands.cli import run
from tests import chats, shapes
from tests.server.formats.whole import whole
from tests.server.rounds.outcome.test_evaluation import losses_by_transformers

STILL = "training.learning_rate=1e-12"


def short(rng: random.Random, count: int) -> list[dict]:
    """Conversations of at most 32 tokens."""
    said = (chats.conversation(rng, turns=1) for _ in range(2000))
    fitting = [{"messages": one} for one in said if sum(len(message["content"]) for message in one) < 14]
    return fitting[:count]


def write(folder, rows, shape) -> None:
    """Ten to learn from, the others to measure on."""
    for name, part in (("train", rows[:10]), ("test", rows[10:])):
        lines = (json.dumps(shape(row["messages"])) for row in part)
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def simulated(model, data, out, *settings, rounds=1):
    """Read what the run wrote of each round."""
    arguments = [
        "simulate", "--model", str(model), "--data", str(data), "--task", "causal-lm", "--clients", "2",
        "--per-round", "2", "--rounds", str(rounds), "--batch", "2", "--length", "64", "--out", str(out),
        *(word for setting in settings for word in ("--set", setting)),
    ]  # fmt: skip
    assert run(arguments) == 0
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("packed", "shape"), [("false", shapes.instruction), ("true", shapes.talk)])
def test_conversations_are_learnt_and_scored_as_on_devices(packed, shape, talker_folder, tmp_path):
    rows = short(random.Random(), 15)
    write(tmp_path, rows, shape)
    (line,) = simulated(talker_folder, tmp_path, tmp_path / "run", f"training.pack={packed}", STILL)
    losses, right = losses_by_transformers(talker_folder, [row["messages"] for row in rows[10:]])
    assert line["test_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert line["perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    assert line["accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    assert (line["examples"] < 8) == (packed == "true")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["adapter"]["last_blocks"], config["numbers"]["units"]) == (0, 4), "both blocks, as an export has it"


def test_a_gguf_file_learns_as_its_folder_does(talker_folder, tmp_path):
    file = whole(talker_folder, tmp_path / "model.gguf", tokenizer=True)
    write(tmp_path, short(random.Random(), 15), shapes.instruction)
    ours, theirs = (
        simulated(model, tmp_path, tmp_path / f"of-{model.name}", rounds=2) for model in (file, talker_folder)
    )
    assert ours[1]["test_loss"] < ours[0]["test_loss"], "it learns"
    for one, other in zip(ours, theirs, strict=True):
        for name in ("loss", "test_loss", "accuracy", "examples"):
            assert one[name] == pytest.approx(other[name], rel=1e-4), name

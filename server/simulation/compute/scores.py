"""How good weights are on a set of examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge_client.arrays import Array, Weights
from edge_client.data.batches import Batch, in_order
from edge_client.data.encoder import Question, TextEncoder, answers
from edge_client.data.examples import Example
from edge_client.training.epoch import evaluate
from server.simulation.compute import answers as squad
from server.simulation.compute.learner import Learner


class Score(NamedTuple):
    """Sums over predictions; answers to questions have a score of their own."""

    total: int
    right: float
    f1: float | None = None

    @property
    def values(self) -> dict[str, float]:
        """As a line of `rounds.jsonl` names them."""
        share = round(self.right / max(self.total, 1), 6)
        if self.f1 is None:
            return {"accuracy": share}
        return {"exact_match": share, "f1": round(self.f1 / max(self.total, 1), 6)}


def score(learner: Learner, encoder: TextEncoder, examples: Sequence[Example], weights: Weights) -> Score:
    """Of a part of the test set."""

    def logits(batch: Batch, values: Weights) -> Array:
        return learner.forward([values], [batch])[0][1]

    task = learner.manifest.model.task
    if task != "qa":
        total, (right,) = evaluate(logits, examples, encoder, task, [weights])
        return Score(total, right)
    exact = f1 = 0.0
    for chosen, encoded, labels in in_order(examples, encoder, task):
        questions = [Question(e.text, e.pair or "", e.answer, e.answer_start) for e in chosen]
        found = answers(logits(Batch(0, encoded.tokens, labels, encoded.example_weight), weights), questions, encoded)
        exact += sum(squad.exact_match(text, e.answers) for text, e in zip(found, chosen, strict=True))
        f1 += sum(squad.f1(text, e.answers) for text, e in zip(found, chosen, strict=True))
    return Score(len(examples), exact, f1)


def combined(scores: Sequence[Score]) -> Score:
    """Of all parts."""
    f1 = [part.f1 for part in scores if part.f1 is not None]
    return Score(sum(part.total for part in scores), sum(part.right for part in scores), sum(f1) if f1 else None)

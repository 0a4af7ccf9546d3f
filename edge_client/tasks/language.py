"""Language modelling (`causal-lm`): each token of a text is predicted from those before it.

A row has `text`, or `prompt` and `completion`, or `messages` (`edge_client.data.conversations`). Of the last two forms
answers alone are learnt: the other tokens are read, and their labels ignored. Logits over a whole vocabulary would take
more memory than the rest of a step, so programs give two numbers of each token in place of them: the likeliest
follower, and the loss of the true one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.bundle.manifest import IGNORED, ModelSpec
from edge_client.data.batches import Labelled
from edge_client.data.conversations import example_of, require_known
from edge_client.data.examples import Check, Example
from edge_client.data.sequences import sequence_of
from edge_client.data.sources import Row
from edge_client.data.templates import Template

from .task import ACCURACY, Prediction, Score, ScoreKind, TaskType

if TYPE_CHECKING:
    from edge_client.data.encoder import Encoded, TextEncoder

_LIKELIEST, _OF_TRUE = 0, 1
"""The indices of each token's two numbers: the likeliest follower, and the loss of the true one."""
LOSS = "test_loss"
"""The mean cross entropy of a token, and the logarithm of the perplexity."""


class Language(TaskType):
    name = "causal-lm"
    fields = ("text", "", "")
    has_head = False
    per_token = True
    converses = True
    scores = (
        ACCURACY,
        ScoreKind("perplexity", "perplexity", share=False),
        ScoreKind(LOSS, "test loss", share=False),
    )

    def check(self, labels: Sequence[str], template: Template | None = None) -> Check:
        known = template or Template()
        return lambda row: example_of(row, known)

    def first_check(self, labels: Sequence[str]) -> Callable[[Row], object]:
        """Take every row: what the template makes of messages is in the bundle."""
        return require_known

    def encode(self, encoder: TextEncoder, examples: Sequence[Example]) -> tuple[Encoded, Array]:
        sequences = [sequence_of(example, encoder) for example in examples]
        encoded = encoder.arranged([sequence.ids for sequence in sequences])
        return encoded, encoder.filled([sequence.labels for sequence in sequences], IGNORED)

    def labels(self, encoder: TextEncoder, examples: Sequence[Example], encoded: Encoded) -> Array:
        """[batch, length]: the tokens that are learnt, IGNORED elsewhere."""
        return self.encode(encoder, examples)[1]

    def label_limit(self, logits: tuple[int, ...], model: ModelSpec) -> int:
        return model.vocabulary

    def right(self, logits: NDArray[Any], part: Labelled) -> list[bool]:
        following = _following(part)
        return (logits[:, :-1, _LIKELIEST] == following)[following != IGNORED].tolist()

    def score(self, logits: NDArray[Any], part: Labelled) -> Score:
        """Score tokens, which count alike, whichever text they are from."""
        score = super().score(logits, part)
        losses = logits[:, :-1, _OF_TRUE][_following(part) != IGNORED]
        return Score(score.total, score.sums | {LOSS: float(losses.sum(dtype=np.float64))})

    def told(self, score: Score) -> dict[str, float]:
        told = super().told(score)
        if LOSS in score.sums:
            with np.errstate(over="ignore"):  # infinite then
                told["perplexity"] = round(float(np.exp(score.means[LOSS])), 6)
        return told

    def read(
        self, logits: NDArray[Any], part: Labelled, labels: Sequence[str], token: Callable[[int], str]
    ) -> list[Prediction]:
        """Return the likeliest token behind each text."""
        last = part.encoded.tokens["attention_mask"].sum(1) - 1
        return [Prediction(token(int(row[place, _LIKELIEST]))) for row, place in zip(logits, last, strict=False)]


def _following(part: Labelled) -> NDArray[np.int64]:
    """Shift tokens by one: each one's label is the token that follows it."""
    return part.labels[: len(part.examples), 1:]

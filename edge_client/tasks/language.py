"""Language modelling (`causal-lm`): each token of a text is predicted from those before it.

A row has `text`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.bundle.manifest import IGNORED
from edge_client.data.batches import Labelled
from edge_client.data.examples import Check, Example, text_of

from .task import ACCURACY, Prediction, Score, ScoreKind, TaskType

if TYPE_CHECKING:
    from edge_client.data.encoder import Encoded, TextEncoder

LOSS = "test_loss"
"""The mean cross entropy of a token, and the logarithm of the perplexity."""


class Language(TaskType):
    name = "causal-lm"
    fields = ("text", "", "")
    per_token = True
    scores = (
        ACCURACY,
        ScoreKind("perplexity", "perplexity", share=False),
        ScoreKind(LOSS, "test loss", share=False),
    )

    def check(self, labels: Sequence[str]) -> Check:
        return lambda row: Example(text_of(row, "text"))

    def labels(self, encoder: TextEncoder, examples: Sequence[Example], encoded: Encoded) -> Array:
        """[batch, length]: the tokens themselves, IGNORED on padding."""
        return encoder.filled([encoding.ids for encoding in encoded.encodings], IGNORED)

    def right(self, logits: NDArray[Any], part: Labelled) -> list[bool]:
        following = _following(part)
        return (logits[:, :-1].argmax(-1) == following)[following != IGNORED].tolist()

    def score(self, logits: NDArray[Any], part: Labelled) -> Score:
        """Of each token alike, whichever text it is from."""
        score = super().score(logits, part)
        return Score(score.total, score.sums | {LOSS: sum(map(_loss, logits, _following(part)))})

    def told(self, score: Score) -> dict[str, float]:
        with np.errstate(over="ignore"):  # infinite then
            return super().told(score) | {"perplexity": round(float(np.exp(score.means[LOSS])), 6)}

    def read(
        self, logits: NDArray[Any], part: Labelled, labels: Sequence[str], token: Callable[[int], str]
    ) -> list[Prediction]:
        """The likeliest token behind each text."""
        last = [sum(encoding.attention_mask) - 1 for encoding in part.encoded.encodings]
        return [Prediction(token(int(row[place].argmax()))) for row, place in zip(logits, last, strict=True)]


def _following(part: Labelled) -> NDArray[np.int64]:
    """What follows each token but the last."""
    return part.labels[: len(part.examples), 1:]


def _loss(logits: NDArray[Any], following: NDArray[np.int64]) -> float:
    """The sum of one text's cross entropies; all texts' at once would take several times the memory of the logits."""
    places = np.flatnonzero(following != IGNORED)
    rows = logits[places]
    highest = rows.max(-1)
    totals = np.log(np.exp(rows - highest[:, None]).sum(-1, dtype=np.float64)) + highest
    return float((totals - rows[np.arange(len(places)), following[places]]).sum())

"""Define a kind of task on a device: how rows are read, what is learnt from them, and what a prediction is.

    a row ── check ──> Example ── encode ──> tokens, labels ── programs ──> logits ── right, score, read

Each kind is a class in a module of its own and a row of the table in `registry.py`; everything else asks the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.bundle.manifest import ModelSpec, TaskName
from edge_client.data.batches import Labelled
from edge_client.data.examples import Check, Example
from edge_client.data.sources import Row

if TYPE_CHECKING:
    from edge_client.data.encoder import Encoded, TextEncoder
    from edge_client.data.templates import Template

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text: its class with every class's probability, a question's answer, or the next token."""

    label: str | None
    scores: dict[str, float] = field(default_factory=dict[str, float])


class ScoreKind(NamedTuple):
    """A score, and how it reads in tables."""

    name: str
    words: str
    share: bool = True
    """True if it is from 0 to 1, and the more the better; else less is better."""


ACCURACY = ScoreKind("accuracy", "generalised")


class Score(NamedTuple):
    """Sums over predictions, under the names of what is summed."""

    total: int
    sums: dict[str, float]

    @property
    def means(self) -> dict[str, float]:
        return {name: value / max(self.total, 1) for name, value in self.sums.items()}


def combined(scores: Sequence[Score]) -> Score:
    """Combine the scores of parts into one."""
    names = dict.fromkeys(name for part in scores for name in part.sums)
    return Score(sum(part.total for part in scores), {name: sum(part.sums[name] for part in scores) for name in names})


class TaskType(ABC):
    """One kind of task; its objects hold nothing."""

    name: ClassVar[TaskName]
    fields: ClassVar[tuple[str, str, str]]
    """The fields of a row: its text, its second text, and what is to be learnt; an empty name where there is none."""
    topic: ClassVar[str] = ""
    """The column in which public data say what a row is about: simulations split over it, where there is no label."""
    has_classes: ClassVar[bool] = False
    """True if the job names classes, one of which a label is."""
    has_head: ClassVar[bool] = True
    """True if the task layer is new and trained; a language model keeps its own, frozen."""
    per_token: ClassVar[bool] = False
    """True if each token has a label, so that labels are cut and filled as texts are."""
    converses: ClassVar[bool] = False
    """True if rows may be conversations, which the bundle's chat template makes a text of."""
    ignores: ClassVar[bool] = True
    """True if a label may be IGNORED."""
    scores: ClassVar[tuple[ScoreKind, ...]]
    """The scores of `told` on a test set; the first is the one that is compared."""

    counted: ClassVar[str] = ACCURACY.name
    """The score whose sum says how many predictions are right."""

    @property
    def main_score(self) -> str:
        return self.scores[0].name

    def hits(self, score: Score) -> int:
        """Count the right predictions."""
        return round(score.sums.get(self.counted, 0))

    # --- examples ---

    @abstractmethod
    def check(self, labels: Sequence[str], template: Template | None = None) -> Check:
        """Makes an example of a row, or refuses it (`BadRow`), where these are the job's classes.

        The template makes texts of conversations; None where there is none.
        """

    def first_check(self, labels: Sequence[str]) -> Callable[[Row], object]:
        """Refuses rows that cannot be examples, as far as that is known before the job's bundle is there."""
        return self.check(labels)

    def asked(self, text: Text) -> Example:
        """Make the example to predict for a text, or for a pair."""
        return Example(text) if isinstance(text, str) else Example(*text)

    # --- labels ---

    def encode(self, encoder: TextEncoder, examples: Sequence[Example]) -> tuple[Encoded, Array]:
        """Arrays of at most a batch of examples, with their labels."""
        encoded = encoder.encode([example.texts for example in examples])
        return encoded, self.labels(encoder, examples, encoded)

    @abstractmethod
    def labels(self, encoder: TextEncoder, examples: Sequence[Example], encoded: Encoded) -> Array:
        """Return the labels of a whole batch, int64, those of rows that only fill it too."""

    def label_shape(self, batch: int, length: int) -> tuple[int, ...]:
        """Return the shape that labels have for a batch of texts of so many tokens."""
        return (batch, length) if self.per_token else (batch,)

    def label_limit(self, logits: tuple[int, ...], model: ModelSpec) -> int:
        """Labels lie below this, for logits of this shape."""
        return logits[-1]

    # --- features; of the examples alone ---

    def feature_rows(self, features: Array, part: Labelled) -> Array:
        """[rows, features] of those [examples, features], or of each token, that predictions are made of."""
        if features.ndim == 2:
            return features
        return features[part.encoded.tokens["attention_mask"][: len(features)] > 0]

    def row_labels(self, part: Labelled) -> Array | None:
        """Return the class of each of these rows; None where a row is no decision between classes."""
        return None

    def most_feature_rows(self, examples: int, length: int) -> int:
        """Bound the feature rows of so many examples of so many tokens."""
        return examples * length

    # --- predictions; logits, or what a bundle's programs give in place of them, are those of the examples alone ---

    @abstractmethod
    def right(self, logits: NDArray[Any], part: Labelled) -> list[bool]:
        """Say of each prediction whether it is right."""

    def score(self, logits: NDArray[Any], part: Labelled) -> Score:
        """Score predictions, in sums that can be added up."""
        hits = self.right(logits, part)
        return Score(len(hits), {ACCURACY.name: sum(hits)})

    def told(self, score: Score) -> dict[str, float]:
        """Return a score over a whole test set, under the names of `scores`."""
        return {name: round(mean, 6) for name, mean in score.means.items()}

    @abstractmethod
    def read(
        self, logits: NDArray[Any], part: Labelled, labels: Sequence[str], token: Callable[[int], str]
    ) -> list[Prediction]:
        """Read logits as predictions for people; `token` gives a token's text."""

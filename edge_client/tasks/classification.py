"""Classification (`seq-cls`): a text, or a pair of texts, is of one of the job's classes.

A row has `text`, `label` (a name or its number), and `text_pair` where a text comes in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.data.batches import Labelled
from edge_client.data.examples import Check, Example, text_of
from edge_client.data.sources import BadRow, Row, UnknownLabel

from .task import ACCURACY, Prediction, TaskType

if TYPE_CHECKING:
    from edge_client.data.encoder import Encoded, TextEncoder
    from edge_client.data.templates import Template


class Classification(TaskType):
    name = "seq-cls"
    fields = ("text", "text_pair", "label")
    has_classes = True
    ignores = False
    scores = (ACCURACY,)

    def check(self, labels: Sequence[str], template: Template | None = None) -> Check:
        numbers = {name: i for i, name in enumerate(labels)}

        def classified(row: Row) -> Example:
            pair = text_of(row, "text_pair") if row.get("text_pair") not in (None, "") else None
            return Example(text_of(row, "text"), pair, class_number(row, numbers))

        return classified

    def labels(self, encoder: TextEncoder, examples: Sequence[Example], encoded: Encoded) -> Array:
        """[batch]; rows that only fill get class 0."""
        result = np.zeros(encoder.batch, np.int64)
        result[: len(examples)] = [example.label for example in examples]
        return result

    def feature_rows(self, features: Array, part: Labelled) -> Array:
        """Return the rows of features: a decoder's are of each token, and its last token decides."""
        if features.ndim == 2:
            return features
        last = part.encoded.tokens["attention_mask"][: len(features)].sum(1) - 1
        return features[np.arange(len(features)), last]

    def row_labels(self, part: Labelled) -> Array:
        """Return the labels of the examples, without those of rows that only fill."""
        return part.labels[: len(part.examples)]

    def most_feature_rows(self, examples: int, length: int) -> int:
        return examples

    def right(self, logits: NDArray[Any], part: Labelled) -> list[bool]:
        return (logits.argmax(-1) == part.labels[: len(part.examples)]).tolist()

    def read(
        self, logits: NDArray[Any], part: Labelled, labels: Sequence[str], token: Callable[[int], str]
    ) -> list[Prediction]:
        exps = np.exp(logits - logits.max(-1, keepdims=True))
        shares = exps / exps.sum(-1, keepdims=True)
        names = labels or tuple(str(i) for i in range(logits.shape[-1]))
        return [
            Prediction(names[int(row.argmax())], {name: float(share) for name, share in zip(names, row, strict=True)})
            for row in shares
        ]


def class_name(value: object) -> object:
    """Return a truth value's name in JSON, which is how labels have it; other values as they are."""
    return str(value).lower() if isinstance(value, bool) else value


def class_number(row: Row, numbers: Mapping[str, int]) -> int:
    """Return a row's label, given by a name or by its number."""
    value = row.get("label")
    if value == "":
        raise BadRow("label is empty")
    if value is None:
        raise BadRow(f"has no label; its fields are {', '.join(map(str, row))[:200] or 'none'}")
    value = class_name(value)
    if isinstance(value, str):
        if value.strip() in numbers:
            return numbers[value.strip()]
        if value.strip().isdecimal() and len(value) < 10:
            value = int(value)
    if isinstance(value, int) and 0 <= value < len(numbers):
        return value
    raise UnknownLabel(value, numbers)

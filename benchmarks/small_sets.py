"""Make sets of few rows and many classes from larger ones, and fit logistic regression to them in one place.

Shared by own_data.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from server.start.baseline import Rows, accuracy

Numbers = NDArray[np.float64]
Classes = NDArray[np.int64]
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FOLDS = 5
_MOST_HELD_OUT = 1000
_RARE, _ROUNDS = 5, 20
"""Words of fewer texts are not looked at when a class is divided; and the passes of that."""


def made(rows: Path, folder: Path, by: Sequence[str], each: int, parts: int, number: int) -> Path:
    """Write `train.jsonl` with so many rows of each class, and `test.jsonl` with others, into a folder.

    Args:
        rows: a folder of .jsonl files, all of whose rows are taken together.
        folder: is made.
        by: the columns of the texts and of the classes.
        each: rows of a class to learn from; classes with fewer than a quarter more are left out.
        parts: of each class, divided by the words of its texts; 1 leaves it whole.
        number: of the draw.
    """
    text, label = by
    lines = b"".join(path.read_bytes() for path in sorted(rows.glob("*.jsonl"))).splitlines()
    every = [json.loads(line) for line in lines]
    texts: dict[str, list[str]] = defaultdict(list)
    for one in dict.fromkeys((str(row[text]).strip(), str(row[label])) for row in every):
        texts[one[1]].append(one[0])
    if parts > 1:
        texts = {
            f"{name} {part}": [one for one, own in zip(known, divided(known, parts), strict=True) if own == part]
            for name, known in sorted(texts.items())
            for part in range(parts)
        }
    names = [name for name, known in sorted(texts.items()) if len(known) >= each + max(each // 4, 1)]
    held_out = _MOST_HELD_OUT // len(names)
    draw, train, test = np.random.default_rng(number), list[dict[str, str]](), list[dict[str, str]]()
    for name in names:
        order = [{"text": texts[name][place], "label": name} for place in draw.permutation(len(texts[name]))]
        train += order[:each]
        test += order[each : each + held_out]
    folder.mkdir()
    for file, part in (("train", train), ("test", test)):
        lines = [json.dumps(part[place]) + "\n" for place in draw.permutation(len(part))]
        (folder / f"{file}.jsonl").write_text("".join(lines))
    return folder


def divided(texts: Sequence[str], parts: int) -> Classes:
    """Divide texts by their words: spherical k-means of weighted words."""
    words = [set(re.findall(r"[^\W\d_]+", text.lower())) for text in texts]
    common = Counter(word for own in words for word in own)
    places = {word: place for place, word in enumerate(word for word in sorted(common) if common[word] >= _RARE)}
    given = np.zeros((len(texts), len(places)), np.float32)
    for row, own in zip(given, words, strict=True):
        for word in own & places.keys():
            row[places[word]] = np.log(len(texts) / common[word])
    given = _unit(given)
    draw, centres = np.random.default_rng(0), given[:1]
    while len(centres) < parts:  # as k-means++ chooses them
        apart = np.maximum(1 - (given @ centres.T).max(1), 0).astype(np.float64)
        centres = np.concatenate([centres, given[[draw.choice(len(texts), p=apart / apart.sum())]]])
    nearest = np.zeros(len(texts), np.int64)
    for _ in range(_ROUNDS):
        nearest = (given @ centres.T).argmax(1)
        sums = [given[nearest == part].sum(0) for part in range(parts)]
        centres = _unit(np.stack(sums))
    return nearest


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


class MeanFeatures:
    """A frozen encoder read by its mean."""

    def __init__(self, folder: str, length: int) -> None:
        self._tokenizer, self._length = AutoTokenizer.from_pretrained(folder), length
        self._encoder: Any = AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def of(self, texts: Sequence[str]) -> Numbers:
        """Compute the mean over each text's tokens."""
        rows: list[Numbers] = []
        for place in range(0, len(texts), 32):
            part = list(texts[place : place + 32])
            batch = self._tokenizer(part, padding=True, truncation=True, max_length=self._length, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            hidden = self._encoder(**batch).last_hidden_state * mask
            rows.append((hidden.sum(1) / mask.sum(1)).double().numpy())
        return np.concatenate(rows)


def regression(train: Rows, held_out: Rows, classes: int) -> float:
    """Fit it to rows at the penalty that does best in cross-validation, and measure it on others."""
    fold = np.random.default_rng(0).permutation(len(train.classes)) % FOLDS

    def without(number: int, penalty: float) -> float:
        watched = fold == number
        kept, others = (Rows(train.features[some], train.classes[some]) for some in (~watched, watched))
        return accuracy(kept, others, classes, penalty)

    scores = {penalty: np.mean([without(number, penalty) for number in range(FOLDS)]) for penalty in PENALTIES}
    return accuracy(train, held_out, classes, max(scores, key=scores.__getitem__))

"""Compute the accuracy of all rows in one place: logistic regression on the frozen encoder's features.

Computed on this machine when a job has ended, by the bundle's own programs: what devices learned together is then shown
beside what each has alone, and beside all rows in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.bundle.folder import Bundle
from edge_client.data.batches import in_order
from edge_client.data.examples import Example, Examples, examples_for
from edge_client.data.sources import open_data
from edge_client.runtimes.runtime import available
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import Training
from server.aggregation.rule import Numbers

_STEPS = 300
PENALTY = 0.1
"""The penalty of squared weights over the number of rows, for features of length 1: scikit-learn's `C` of 10."""


class Rows(NamedTuple):
    """Features of rows, and their classes."""

    features: Numbers
    """[rows, features]"""
    classes: NDArray[np.int64]


class RegressionScores(NamedTuple):
    """Accuracies of rows held out."""

    in_one_place: float
    alone: float | None
    """The mean of the devices' own; None where there are none."""


class Files(NamedTuple):
    """Files of rows."""

    train: Path
    held_out: Path
    devices: Sequence[Path]
    """The rows of each device."""


def baseline(bundle: Path, files: Files, tell: Callable[[str], None]) -> RegressionScores | None:
    """Fit a layer to all rows, and to those of each device; None where the bundle has no features.

    Args:
        bundle: the folder of the bundle.
        files: the files of rows; those held out are measured on.
        tell: takes lines on the progress.
    """
    opened = Bundle.open(bundle, verify=False)
    runtime = next((name for name in available() if name in opened.manifest.runtimes), None)
    if runtime is None or opened.manifest.features is None or not opened.manifest.model.labels:
        return None
    bench = TrainingSession(opened, runtime, threads=1)
    try:
        features = _Features(bench, tell)
        measured, parts = features.of(files.held_out), [features.of(path) for path in files.devices]
        whole, classes = features.of(files.train), len(opened.manifest.model.labels)
    finally:
        bench.close()
    alone = [accuracy(rows, measured, classes) for rows in parts]
    tell("fitting")
    return RegressionScores(accuracy(whole, measured, classes), float(np.mean(alone)) if alone else None)


class _Features:
    """The frozen encoder; rows that came before are not computed again."""

    def __init__(self, bench: TrainingSession, tell: Callable[[str], None]) -> None:
        batch, length = bench.manifest.shapes[0]
        task = bench.task(Training(batch=batch, length=length))
        self._bench, self._tell = bench, tell
        self._passes = bench.passes(task, None, keep_prefixes=False)
        self._encoder = bench.encoder(batch, length)
        self._weights = bench.bundle.initial_adapter()
        self._known: dict[Example, Numbers] = {}

    def of(self, path: Path) -> Rows:
        examples = examples_for(open_data(path), self._bench.check(), bad_rows="skip")
        self._compute(examples)
        return Rows(np.stack([self._known[one] for one in examples]), np.array([one.label for one in examples]))

    def _compute(self, examples: Examples) -> None:
        new = [one for one in dict.fromkeys(examples) if one not in self._known]
        for part in in_order(new, self._encoder, self._bench.kind.encode):
            rows = self._passes.features(part.batch, self._weights)[: len(part.examples)]
            self._known |= dict(zip(part.examples, rows.astype(np.float64), strict=True))
            self._tell(f"{len(self._known):,} rows")


def accuracy(rows: Rows, measured: Rows, classes: int, penalty: float = PENALTY) -> float:
    """Fit logistic regression to rows, and measure it on others."""
    centre = rows.features.mean(0)
    scale = 1 / max(float(np.sqrt(np.square(rows.features - centre).sum(1).mean())), np.finfo(np.float64).tiny)
    weight, bias = logistic_regression((rows.features - centre) * scale, rows.classes, classes, penalty)
    given = (measured.features - centre) * scale @ weight.T + bias
    return float((given.argmax(1) == measured.classes).mean())


def logistic_regression(
    features: Numbers, labels: NDArray[np.int64], classes: int, penalty: float = PENALTY
) -> tuple[Numbers, Numbers]:
    """Fit weights [classes, features] and biases, by steps of Nesterov's method."""
    count, width = features.shape
    wanted = np.eye(classes)[labels]
    given = np.concatenate([features, np.ones((count, 1))], 1)
    penalties = np.append(np.full(width, penalty / count), 0.0)
    weights = before = np.zeros((classes, width + 1))
    largest = float(np.linalg.eigvalsh(given.T @ given / count)[-1])
    rate = 1 / (largest / 2 + penalty / count)  # the curvature of the errors is at most a half
    for step in range(_STEPS):
        ahead = weights + step / (step + 3) * (weights - before)
        logits = given @ ahead.T
        logits -= logits.max(1, keepdims=True)
        likely = np.exp(logits)
        likely /= likely.sum(1, keepdims=True)
        before, weights = weights, ahead - rate * ((likely - wanted).T @ given / count + ahead * penalties)
    return weights[:, :-1], weights[:, -1]

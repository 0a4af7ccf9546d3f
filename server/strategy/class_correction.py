"""Estimate what clients' class imbalance explains of their updates, and take it from these before their mean.

A round's few clients have too many texts of some classes, by chance. What they agree on most is that these ought to be
likelier, and units that follow swing from class to class, round by round. How much more of each class a client has than
the model says is the sum of its errors, by which it moved the head's bias. What its units' change has in common with
that is of the draw, not of the task: a control variate. How much that is, is fitted on earlier rounds, so that a
round's own chance has no part in it; the first round is not corrected. How likely a class is stays with the bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from server.aggregation.rule import Numbers, no_longer
from server.jobs.settings import JobSettings
from server.strategy.outliers import HEAD_NORM, Norms, kind_of_unit
from server.strategy.state import ServerState

KEPT = 0.9
"""The factor by which the statistics of earlier rounds shrink each round, as the pull of classes changes with the
model."""
RIDGE = 0.1
"""The share of the errors' mean square that is added in each direction, lest few clients decide."""
MOST_CLASSES = 16
"""The most classes: for more, a round's clients are too few, and statistics would be many times the adapter's size."""


@dataclass
class _Products:
    """The weighted sums of errors, moves and their products over a parameter's holders."""

    weight: float
    errors: Numbers
    far: Numbers
    """The weighted sum of moves."""
    products: Numbers
    """The products of errors with moves and with themselves: a row for each class."""

    @classmethod
    def empty(cls, classes: int, size: int) -> _Products:
        return cls(0.0, np.zeros(classes), np.zeros(size), np.zeros((classes, size + classes)))

    def add(self, errors: Numbers, far: Numbers, weight: float) -> None:
        self.weight += weight
        self.errors += weight * errors
        self.far += weight * far
        self.products += np.outer(weight * errors, np.concatenate([far, errors]))

    def common(self) -> Numbers:
        """Compute the cross products of errors with moves about their mean, and of errors with themselves.

        Errors' own products keep their mean: an error that all clients share does not say how moves go with it.
        """
        moved = np.concatenate([self.far / self.weight, 0 * self.errors])
        return self.products / self.weight - np.outer(self.errors / self.weight, moved)


class ClassCorrection:
    """Remove from each client's update the part that its class imbalance explains (a control variate).

    How updates go with errors is fitted on earlier rounds; a round's own updates are noted for later ones.
    """

    def __init__(
        self, start: ServerState, settings: JobSettings, manifest: Manifest, usual: Norms | None = None
    ) -> None:
        """Prepare the correction; `usual` has the updates' median lengths, which bound what a client contributes."""
        self._start = start
        self._usual = usual or {}
        self._bias = manifest.features.bias if manifest.features is not None and settings.measures(manifest) else ""
        known = bool(self._bias) and 0 < len(manifest.model.labels) <= MOST_CLASSES
        units = manifest.units if known else []
        self._parameters = {one.name: kind_of_unit(unit) for unit in units for one in unit.parameters}
        self._told: dict[str, _Products] = {}
        self._slopes: dict[str, Numbers] = {}

    def corrected(
        self, update: Mapping[str, Array], weights: Mapping[str, float], norms: Norms | None = None
    ) -> Mapping[str, Array]:
        """Subtract the class correction from an update, and note what goes with its errors for later rounds.

        What is taken from a parameter's change is as long as the change at most: earlier rounds' clients may have lied.
        So may this one: what is noted of it is as of an update of the median lengths, if its own (`norms`) are longer.
        """
        own = {name: update[name] for name in weights}
        if not self._parameters:
            return own
        errors = np.subtract(update[self._bias], self._start.weights[self._bias], dtype=np.float64)
        for name in (name for name in weights if name in self._parameters):
            far = np.subtract(own[name], self._start.weights[name], dtype=np.float64).ravel()
            if name not in self._told:
                self._told[name] = _Products.empty(len(errors), len(far))
            believed = self._share(HEAD_NORM, norms) * errors, self._share(self._parameters[name], norms) * far
            self._told[name].add(*believed, weights[name])
            taken = no_longer((errors @ self._slope(name, len(errors), len(far)))[None], float(np.linalg.norm(far)))
            own[name] = own[name] - taken.reshape(own[name].shape)
        return own

    def _share(self, kind: str, norms: Norms | None) -> float:
        """Shorten a client's part in the statistics of later rounds."""
        own, usual = (norms or {}).get(kind, 0.0), self._usual.get(kind, 0.0)
        return min(1.0, usual / own) if own > 0 and usual > 0 else 1.0

    def _slope(self, name: str, classes: int, size: int) -> Numbers:
        """Compute a parameter's move per unit of error, fitted on earlier rounds: [classes, numbers]."""
        if name not in self._slopes:
            products = self._start.class_correction.get(name)
            told = np.zeros((classes, size + classes)) if products is None else products.astype(np.float64)
            errors = told[:, size:]
            eased = errors + np.eye(classes) * (RIDGE * np.trace(errors) / classes + np.finfo(np.float32).tiny)
            self._slopes[name] = np.linalg.solve(eased, told[:, :size])
        return self._slopes[name]

    def state(self) -> Weights:
        """Return the statistics for later rounds, by parameter."""
        after: Weights = {}
        for name, products in self._told.items():
            before = self._start.class_correction.get(name)
            told = (products.common() + (0 if before is None else KEPT * before)).astype(np.float32)
            if np.isfinite(told).all():
                after[name] = told
        return after

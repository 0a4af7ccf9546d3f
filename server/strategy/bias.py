"""Bound how far an update moves the head's bias, by what its own weights say and by the other devices.

Classes follow the bias at once, and it is so few numbers that the head's length does not say how far it moves. But each
example says it twice: its error moves the bias as it is, and the weights by its product with the features. These vary
little beside their mean, so the weights' change along it is nearly the bias's. A bias that says something else would
also turn the rest of the weights, as the head's step takes the bias's part out of them (`server.strategy.features`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.manifest import FeatureSpec, Manifest
from edge_client.training.features import MEAN, PRODUCTS, moments_in
from server.aggregation.rule import Numbers
from server.strategy.features import bias_by_weights, joined
from server.strategy.moments import MOST_TIMES
from server.strategy.outliers import Norms, kind_in_head
from server.strategy.state import ServerState
from server.strategy.updates import Contribution


class BiasBound:
    """Reads a round's updates, whose biases move as far as is believed."""

    def __init__(self, start: ServerState, manifest: Manifest, usual: Norms) -> None:
        """Prepare the bound; `usual` has the updates' median lengths, and is empty where they are too few."""
        self._start = start
        self._known = joined(start.features, [])
        self._spec = manifest.features if manifest.features is not None and manifest.features.bias else None
        self._kind = kind_in_head(self._spec.bias) if self._spec is not None else ""
        self._usual = usual.get(self._kind, 0.0)

    def read(self, update: Contribution) -> Mapping[str, Array]:
        """Read an update, whose bias moves at most `MOST_TIMES` as far as the round's median one.

        It is what the weights say of it, if it is further from that than the median one goes at all.
        """
        tensors, own = update.tensors(), update.norms.get(self._kind, 0.0)
        if self._spec is None or not self._usual:
            return tensors
        name, most = self._spec.bias, MOST_TIMES * self._usual
        start = self._start.weights[name]
        said = self._said_by_weights(tensors, update.report.measured, self._spec)
        if said is not None and _size(tensors[name] - start - said) > self._usual:
            tensors, own = {**tensors, name: (start + said).astype(np.float32)}, _size(said)
        if own <= most:
            return tensors
        return {**tensors, name: (start + most / own * (tensors[name] - start)).astype(np.float32)}

    def _said_by_weights(self, tensors: Mapping[str, Array], measured: int, spec: FeatureSpec) -> Numbers | None:
        """Compute how far the weights say that the bias moves; None where nothing is known of the features' mean.

        In the first round only the device itself knows its features.
        """
        known = self._known or joined({}, [moments_in(tensors, measured)])
        if not known:
            return None
        weight = np.subtract(tensors[spec.weight], self._start.weights[spec.weight], dtype=np.float64)
        return bias_by_weights(weight, known[MEAN], known[PRODUCTS])


def _size(change: Numbers | Array) -> float:
    return float(np.sqrt(np.mean(np.square(change, dtype=np.float64))))

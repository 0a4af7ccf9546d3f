"""The state of a job between two rounds, and the steps that lead to its next version.

In mode epoch a step is a mean change of the weights, in mode iteration a record that every device repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from edge_client.bundle.names import (
    AVERAGE,
    CLASS_CORRECTION,
    CLIP,
    ERROR,
    FEATURES,
    FINGERPRINTS,
    OWN,
    REPEATED,
    UNIT_SIZES,
    prefix_of,
    under,
    within,
)
from edge_client.gradient.drawing import Draw, step_directions
from edge_client.training.optimizers import server_step
from edge_client.training.replay import replay
from edge_client.wire.scalars import StepRecord
from server.jobs.settings import JobSettings

NEWEST = 3
"""The power of a version's number by which it weighs in the running average while versions are few: the average is
then a fifth of the way behind, however long the way is (polynomial decay; Shamir and Zhang, 2013)."""

_PREFIXES = {
    "average": AVERAGE,
    "class_correction": CLASS_CORRECTION,
    "unit_sizes": UNIT_SIZES,
    "fingerprints": FINGERPRINTS,
    "own": OWN,
}
"""The prefix of the names of a field's arrays where a state is stored."""


@dataclass(frozen=True)
class ServerState:
    """The weights, and everything else that the server's next step reads. Its arrays are never changed in place."""

    version: int
    weights: Weights
    """The weights by parameter."""
    moments: Weights = field(default_factory=dict[str, Array])
    """The server optimizer's state, under `FIRST`, `SECOND` or a slot of its own, and the parameter."""
    average: Weights = field(default_factory=dict[str, Array])
    """The running average of the weights, where the job keeps one."""
    features: Weights = field(default_factory=dict[str, Array])
    """The moments of the inputs of the head's last layer, named as in updates (`server.strategy.features`)."""
    class_correction: Weights = field(default_factory=dict[str, Array])
    """The statistics of each parameter's move by its holders' class imbalance (`server.strategy.class_correction`)."""
    unit_sizes: Weights = field(default_factory=dict[str, Array])
    """The lengths of the changes of each unit's newest holders (`server.aggregation.units`)."""
    fingerprints: Weights = field(default_factory=dict[str, Array])
    """The sum of each device's updates, shortened, by its id (`server.aggregation.memory`)."""
    clip: float | None = None
    """The norm to which private updates of the next round are clipped, if it adapts (`server.privacy.mechanism`)."""
    own: Weights = field(default_factory=dict[str, Array])
    """The arrays that strategies of other distributions keep."""

    @classmethod
    def read(cls, version: int, weights: Weights, arrays: Mapping[str, Array]) -> ServerState:
        """Read a state from the arrays that `arrays` put together."""
        fields = {name: within(arrays, prefix) for name, prefix in _PREFIXES.items()}
        known = (*_PREFIXES.values(), FEATURES, CLIP)
        return cls(
            version,
            weights,
            moments={name: value for name, value in arrays.items() if not prefix_of(name, known)},
            features={name: value for name, value in arrays.items() if name.startswith(FEATURES)},
            clip=float(arrays[CLIP][0]) if CLIP in arrays else None,
            **fields,
        )

    def arrays(self) -> Weights:
        """Return all but the weights in one mapping, as files keep it."""
        clip = {} if self.clip is None else {CLIP: np.array([self.clip], np.float32)}
        parts = [under(prefix, getattr(self, name)) for name, prefix in _PREFIXES.items()]
        return {name: value for part in (self.moments, self.features, clip, *parts) for name, value in part.items()}

    @property
    def result(self) -> Weights:
        """The weights that a job measures and publishes: their running average, where it keeps one."""
        return self.weights | self.average

    @property
    def repeatable(self) -> Weights:
        """The arrays that a device needs to take the server's steps itself."""
        return self.weights | {name: value for name, value in self.moments.items() if prefix_of(name, REPEATED)}


def apply_change(
    state: ServerState, change: Weights, settings: JobSettings, manifest: Manifest, errors: Weights | None = None
) -> ServerState:
    """Step by a mean change, and its standard errors where devices' changes are known apart."""
    weights, moments = dict(state.weights), state.moments | under(ERROR, errors or {})
    server_step(weights, change, moments, settings.optimizers, manifest.head_names)
    return _averaged(replace(state, version=state.version + 1, weights=weights, moments=moments), settings.average)


def apply_record(
    state: ServerState, record: StepRecord, settings: JobSettings, manifest: Manifest, draw: Draw = step_directions
) -> ServerState:
    """Step by a published record, as every client does that keeps in step."""
    weights, moments = dict(state.weights), dict(state.moments)
    replay(record, weights, moments, manifest, settings.training, settings.optimizers, draw)
    return _averaged(replace(state, version=state.version + 1, weights=weights, moments=moments), settings.average)


def _averaged(state: ServerState, keeps: float) -> ServerState:
    """Update the running average with a version; while versions are few, it keeps less of the first ones.

    Averaging all of them equally would lag by half a job where a job has ten rounds.
    """
    if not keeps:
        return state
    keeps = min(keeps, (state.version - 1) / (state.version + NEWEST))
    before = {name: state.average.get(name, value) for name, value in state.weights.items()}
    average = {name: keeps * before[name] + (1 - keeps) * value for name, value in state.weights.items()}
    return replace(state, average=average)

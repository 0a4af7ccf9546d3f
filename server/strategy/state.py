"""What a server knows between two rounds, and how a step leads to the next of it.

In mode epoch a step is a mean change of the weights, in mode iteration a record that every device repeats.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.bundle.names import AVERAGE, ERROR, REPEATED, prefix_of, under
from edge_client.gradient.drawing import Draw, step_directions
from edge_client.training.optimizers import server_step
from edge_client.training.replay import replay
from edge_client.wire.scalars import StepRecord
from server.jobs.settings import JobSettings

NEWEST = 3
"""While versions are few, one weighs in the running average by about this power of its number: the average is then a
fifth of the way behind, however long the way is (polynomial decay; Shamir and Zhang, 2013)."""


@dataclass(frozen=True)
class Model:
    """Weights and the server optimizer's state. Nobody changes the arrays."""

    version: int
    weights: Weights
    optimizer: Weights

    @property
    def result(self) -> Weights:
        """Give the weights that a job measures and gives out: their running average, where it keeps one."""
        return {name: self.optimizer.get(AVERAGE + name, value) for name, value in self.weights.items()}

    @property
    def repeatable(self) -> Weights:
        """Give what a device needs to take the server's steps itself: the average is not for it."""
        return self.weights | {n: value for n, value in self.optimizer.items() if prefix_of(n, REPEATED)}


def moved(
    model: Model, change: Weights, settings: JobSettings, manifest: Manifest, errors: Weights | None = None
) -> Model:
    """The next version, by a change, and its standard errors where devices' changes are known apart."""
    weights, optimizer = dict(model.weights), model.optimizer | under(ERROR, errors or {})
    server_step(weights, change, optimizer, settings.optimizers, manifest.head_names)
    return _averaged(Model(model.version + 1, weights, optimizer), settings.average)


def repeated(
    model: Model, record: StepRecord, settings: JobSettings, manifest: Manifest, draw: Draw = step_directions
) -> Model:
    """The next version, by a published record: what every client in step does too."""
    weights, optimizer = dict(model.weights), dict(model.optimizer)
    replay(record, weights, optimizer, manifest, settings.training, settings.optimizers, draw)
    return _averaged(Model(model.version + 1, weights, optimizer), settings.average)


def _averaged(model: Model, keeps: float) -> Model:
    """The version with its running average brought up to it; while versions are few, it keeps less of the first ones.

    The mean of all of them would be half a job behind where a job has ten rounds.
    """
    if not keeps:
        return model
    keeps = min(keeps, (model.version - 1) / (model.version + NEWEST))
    before = model.result
    average = {AVERAGE + name: keeps * before[name] + (1 - keeps) * value for name, value in model.weights.items()}
    return Model(model.version, model.weights, model.optimizer | average)

"""Fingerprint updates by numbers that can be compared between devices whose data differ.

For a model with a task layer whose features are measured they are the layer's change about the features' mean and in
units of their spread: what a device's texts say of its classes. The raw change is along the mean for the most
part, by which devices with different shares of the classes seem to contradict each other. All devices train the layer,
whatever units they hold, so all can be compared.

Otherwise they are the changes of the units, each over its usual length. That says less: in the first round behind
a layer of zeros, or where estimates are noisy, next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import FeatureSpec, Manifest, Parameter
from edge_client.training.features import MEAN
from server.aggregation.memory import Fingerprints, shortened
from server.aggregation.rule import Numbers, middle, sizes_of
from server.strategy.features import freedom_of, pulls, whitened

FREEDOM_OF_PART = 32
"""The effective number of directions of a unit's changes: they are products of few vectors, and vary along few."""


def fingerprints(
    start: Weights, moments: Weights, updates: Sequence[Mapping[str, Array]], manifest: Manifest, heads: Numbers | None
) -> Fingerprints:
    """Fingerprint each update: by its head where the moments of features are known, else by its units."""
    spec = manifest.features
    if heads is not None and spec is not None:
        rows = max(len(start[spec.weight]) - 1, 1)  # errors of an example sum to nothing
        return shortened(Fingerprints(heads, rows * freedom_of(moments)))
    parts = [unit.parameters for unit in manifest.units] or [manifest.head]
    said = np.concatenate([_of_part(start, updates, parameters) for parameters in parts], 1)
    freedom = sum(min(FREEDOM_OF_PART, sum(one.size for one in parameters)) for parameters in parts)
    return shortened(Fingerprints(said, float(freedom)))


def compared_heads(
    start: Weights, moments: Weights, updates: Sequence[Mapping[str, Array]], manifest: Manifest
) -> Numbers | None:
    """Whiten updates' changes of the measured layer; None where nothing is known of its features."""
    spec = manifest.features
    return None if spec is None or not moments or not updates else _of_head(start, moments, updates, spec)


def pulls_of_heads(
    start: Weights, moments: Weights, updates: Sequence[Mapping[str, Array]], manifest: Manifest
) -> Numbers:
    """Compute what `compared_heads` leaves out of updates' changes, in the numbers of a head that is measured whole."""
    spec = manifest.features
    assert spec is not None
    weight, bias = _changes_of_head(start, updates, spec)
    moved = pulls(weight, bias, moments).reshape(len(updates), -1)
    parts = {spec.weight: moved[:, :, None] * moments[MEAN].astype(np.float64), spec.bias: moved}
    return np.concatenate([parts[one.name].reshape(len(updates), -1) for one in manifest.head], 1)


def is_whole_head(manifest: Manifest) -> bool:
    """Tell whether the task layer has no more than what is measured."""
    return manifest.features is not None and not manifest.before_logits


def _of_head(start: Weights, moments: Weights, updates: Sequence[Mapping[str, Array]], spec: FeatureSpec) -> Numbers:
    weight, bias = _changes_of_head(start, updates, spec)
    return whitened(weight, bias, moments).reshape(len(updates), -1)


def _changes_of_head(
    start: Weights, updates: Sequence[Mapping[str, Array]], spec: FeatureSpec
) -> tuple[Numbers, Numbers | None]:
    """Stack all updates' rows of the layer's change, [rows, features], and of its bias."""
    weight = np.stack([_change(start, own, spec.weight) for own in updates])
    bias = np.stack([_change(start, own, spec.bias) for own in updates]).reshape(-1) if spec.bias else None
    return weight.reshape(-1, weight.shape[-1]), bias


def _of_part(start: Weights, updates: Sequence[Mapping[str, Array]], parameters: Sequence[Parameter]) -> Numbers:
    """Flatten a unit's changes over their usual length, [updates, numbers]; zeros for devices that do not hold it."""
    said = np.zeros((len(updates), sum(parameter.size for parameter in parameters)))
    holders = [place for place, own in enumerate(updates) if parameters[0].name in own]
    for place in holders:
        changes = [_change(start, updates[place], parameter.name).reshape(-1) for parameter in parameters]
        said[place] = np.concatenate(changes)
    sizes = sizes_of(said[holders])
    usual = middle(sizes, np.ones(len(sizes))) if holders else 0.0
    return said / usual if usual > 0 else said


def _change(start: Weights, update: Mapping[str, Array], name: str) -> Numbers:
    return update[name].astype(np.float64) - start[name]

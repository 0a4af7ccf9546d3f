"""An update as a sum takes it: by how much the head and each unit changed, in a row, and the report's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.wire.clipping import silent
from edge_client.wire.protocol import Report

from . import fixed
from .fixed import HEAD, TOLD, UNITS, WHOLE, Parts
from .noise import Share

HEAD_NAME = "head"


def unit_name(unit: int) -> str:
    return f"unit {unit}"


def changes(manifest: Manifest, units: Sequence[int], own: Weights, start: Weights) -> Weights:
    """Compute by how much the head and these units changed, each as one row."""
    parts = {unit_name(unit): manifest.units[unit].parameters for unit in units}
    return {name: _change(parameters, own, start) for name, parameters in (parts | {HEAD_NAME: manifest.head}).items()}


def _change(parameters: Sequence[Parameter], own: Weights, start: Weights) -> Array:
    rows = [(own[one.name] - start[one.name]).reshape(-1) for one in parameters]
    return np.concatenate([np.zeros(0, np.float32), *rows])


def unmasked(
    moved: Weights, units: Sequence[int], report: Report, cap: int, count: int, scores: Sequence[str]
) -> Parts:
    """Encode an update as integers, before masks; `moved` is what `changes` gave."""
    weighs = fixed.weight(report.examples, cap)
    parts: Parts = {part: fixed.encoded(change, weighs, count) for part, change in _by_part(moved, units).items()}
    parts[TOLD] = fixed.told(report, weighs, scores)
    return parts


def noisy(
    moved: Weights, units: Sequence[int], report: Report, share: Share, secret: bytes, count: int, scores: Sequence[str]
) -> Parts:
    """Encode a private sum's part, with this device's share of the noise; reports say only that they are there."""
    parts = share.encoded(_by_part(moved, units), count, secret)
    parts[TOLD] = fixed.told(replace(silent(report), steps=1), WHOLE, scores)
    return parts


def _by_part(moved: Weights, units: Sequence[int]) -> Mapping[int, Array]:
    named = {HEAD: HEAD_NAME} | {UNITS + unit: unit_name(unit) for unit in units}
    return {part: moved[name] for part, name in named.items()}

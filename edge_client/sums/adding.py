"""An update as a sum takes it: by how much the head and each unit changed, in a row, and what the report says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.wire.protocol import Report

from . import fixed
from .fixed import HEAD, TOLD, UNITS, Parts

HEAD_NAME = "head"


def unit_name(unit: int) -> str:
    return f"unit {unit}"


def changes(manifest: Manifest, units: Sequence[int], own: Weights, start: Weights) -> Weights:
    """Of the head and these units."""
    parts = {unit_name(unit): manifest.units[unit].parameters for unit in units}
    return {name: _change(parameters, own, start) for name, parameters in (parts | {HEAD_NAME: manifest.head}).items()}


def _change(parameters: Sequence[Parameter], own: Weights, start: Weights) -> Array:
    rows = [(own[one.name] - start[one.name]).reshape(-1) for one in parameters]
    return np.concatenate([np.zeros(0, np.float32), *rows])


def unmasked(
    moved: Weights, units: Sequence[int], report: Report, cap: int, count: int, scores: Sequence[str]
) -> Parts:
    """The integers of an update, before masks; `moved` is what `changes` gave."""
    weighs = fixed.weight(report.examples, cap)
    named = {HEAD: HEAD_NAME} | {UNITS + unit: unit_name(unit) for unit in units}
    parts: Parts = {part: fixed.encoded(moved[name], weighs, count) for part, name in named.items()}
    parts[TOLD] = fixed.told(report, weighs, scores)
    return parts

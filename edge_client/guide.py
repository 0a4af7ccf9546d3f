"""Directions that come with the weights instead of being drawn: a job's guide.

Whoever has labelled examples makes one, K directions for each parameter of a unit. It stands in the server optimizer's
state, so that it is saved, sent and resumed like the rest of it, until the next one takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from .manifest import Manifest
from .optimizers import Floats, Weights

Guide = Mapping[str, Floats]
"""[K, *shape] for each parameter."""
NO_GUIDE: Guide = MappingProxyType({})
"""Directions are drawn."""
GUIDE = "g:"
"""Stands before a parameter's name in the optimizer's state."""


def guide_in(state: Weights) -> Weights:
    """What it holds of one."""
    return {name.removeprefix(GUIDE): rows for name, rows in state.items() if name.startswith(GUIDE)}


def guided(guide: Guide, manifest: Manifest, units: Iterable[int], batch: int) -> Weights:
    """A client's directions, [K * batch, *shape]: those of its units, the same for all examples of a batch."""
    names = [parameter.name for unit in units for parameter in manifest.units[unit].parameters]
    return {name: np.repeat(guide[name], batch, axis=0) for name in names}

"""Name tensors that belong to a parameter by a prefix of its name: the one table of these prefixes.

Programs name their inputs and outputs so, and files keep the server optimizer's state so, beside the weights, which
have the plain name. A prefix means one thing in a program and may mean another in a state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

T = TypeVar("T")

# of a program's inputs and outputs
WEIGHT = "w:"
DIRECTION = "v:"
GRADIENT = "g:"
MOVED = "x:"
"""The direction of a weight that a tangent at its bottleneck amounts to."""

# of an optimizer's state
FIRST = "m:"
"""The first moment."""
SECOND = "v:"
"""The second."""
ERROR = "e:"
"""The standard error of a mean change, by how far each device's goes: in the server's state for one step alone."""
COUNT = "t:"
"""The steps of a parameter so far."""
AVERAGE = "a:"
"""The running average of a job's weights, which the server alone keeps."""
FEATURES = "f:"
"""The moments of what reaches the head's last layer (`edge_client.training.features`): in an update those of a device,
in the state those of all."""
UNIT_SIZES = "n:"
"""The sizes of the changes of a unit's newest holders (`server.aggregation.units`), which the server alone keeps."""
FINGERPRINTS = "s:"
"""A device's fingerprints of all rounds, by its id (`server.aggregation.memory`), which the server alone keeps."""
CLASS_CORRECTION = "l:"
"""The statistics of a parameter's move by its trainers' errors (`server.strategy.class_correction`), which the server
alone keeps."""
CLIP = "c:norm"
"""The norm to which updates of the next round are clipped, where it adapts (`server.privacy.mechanism`); the server
alone keeps it."""
OWN = "o:"
"""The arrays that a strategy of another distribution keeps between rounds; the server alone keeps them."""
REPEATED = (FIRST, SECOND)
"""The server's state that devices need to take its steps themselves; no other is sent, or accepted."""


def prefix_of(name: str, prefixes: Collection[str]) -> str:
    """Return the one of these that a name begins with; nothing where it has none."""
    return next((prefix for prefix in prefixes if name.startswith(prefix)), "")


def within(tensors: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Take the tensors whose names begin with a prefix, and drop the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def under(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the inverse: all of them with the prefix before their names."""
    return {prefix + name: value for name, value in tensors.items()}

"""Limit the forward passes of a device's step by how long its last assignment of the same job took."""

from __future__ import annotations

SHARE_OF_DEADLINE = 0.5
"""The share of a round's time that training is planned to take: the rest is for transfers and other work."""
LESS_AFTER = 0.5
"""The share of a step's forward passes that is asked for again where time ran out."""


def passes_in_time(passes: float, seconds: float | None, deadline: float) -> float | None:
    """Scale the passes of a device's last step to the time that a round leaves it; None where nothing is known.

    Args:
        passes: the forward passes of each of its last steps.
        seconds: the time that its training took; None where it ran out of time.
        deadline: the time of a round, in seconds.
    """
    if seconds is None:
        return LESS_AFTER * passes
    return passes * SHARE_OF_DEADLINE * deadline / seconds if seconds else None

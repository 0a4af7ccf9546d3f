"""How many forward passes a step of a device may take, by how long its last assignment of the same job took."""

from __future__ import annotations

SHARE_OF_DEADLINE = 0.5
"""Of a round's time, what training is planned to take: the rest is for transfers and for what else runs."""
LESS_AFTER = 0.5
"""Of a step's forward passes, how many are asked for again where time ran out."""


def passes_in_time(passes: float, seconds: float | None, deadline: float) -> float | None:
    """Scale the passes of a device's last step to the time that a round leaves it; None where nothing is known.

    Args:
        passes: of each of its last steps.
        seconds: what its training took; None where it ran out of time.
        deadline: the seconds of a round.
    """
    if seconds is None:
        return LESS_AFTER * passes
    return passes * SHARE_OF_DEADLINE * deadline / seconds if seconds else None

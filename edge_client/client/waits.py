"""A client's waits between one look at the server and the next."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from edge_client.events import Event, Tell

IDLE_SECONDS = 5.0
"""The seconds from which on a wait is worth giving the runtime's memory back."""
LONG_SECONDS = 20.0
"""The seconds from which on a wait is worth giving back what a runtime leaves in the process that loaded it."""
SHORTEST = 0.2
FAILURE, LONGEST_FAILURE = 5.0, 3600.0
MOST_LATE = 60.0
"""The seconds after the user's hours have begun over which a fleet with the same hours spreads."""
LATE = 1.0
"""The seconds to wait after a result for a round that was over; the server says who has to wait longer."""


class Waits:
    """The waits of a client, and what it does before them.

    Args:
        pause: waits some seconds.
        tell: takes the reason of a wait, once.
        before_idle: called before a wait that is worth giving memory back.
        before_long: the same for a long one, with its seconds.
    """

    def __init__(
        self,
        pause: Callable[[float], object],
        tell: Tell,
        before_idle: Callable[[], object],
        before_long: Callable[[float], object],
    ) -> None:
        self.reason = ""
        self.failures = 0
        """The number of failed tasks, one after the other: they lengthen the waits."""
        self.pause = pause
        self._tell = tell
        self._before_idle = before_idle
        self._before_long = before_long

    def wait(self, asked: float, reason: str = "", *, at_most_late: float = math.inf) -> None:
        """Wait about as long as asked; devices with the same wait must not come back together.

        `at_most_late` bounds the seconds by which a wait may be longer than asked, for windows that must not be missed.
        """
        asked = max(asked, SHORTEST if reason else 0.0)
        seconds = min(asked * random.uniform(0.9, 1.2), asked + at_most_late)  # noqa: S311
        if reason and reason != self.reason:
            told = f"{reason}; next look in about {lasting(seconds)}"
            self._tell(Event("waiting", told, {"seconds": round(seconds)}))
        self.reason = reason
        if seconds >= IDLE_SECONDS:
            self._before_idle()
        if seconds >= LONG_SECONDS:
            self._before_long(seconds)
        if seconds > 0:
            self.pause(seconds)

    def go_on(self, seconds: float, reason: str, failures: int) -> None:
        """Go on with a wait that another process began."""
        self.reason, self.failures = reason, failures
        self.pause(seconds)

    def after_failure(self) -> None:
        """Wait after a failure, the longer the more tasks have failed since one succeeded."""
        self.failures += 1
        self.wait(min(FAILURE * 2 ** min(self.failures - 1, 12), LONGEST_FAILURE))

    def after_late(self) -> None:
        """Others were faster, or a time was up: the next round may be open already."""
        self.wait(LATE)

    def after_success(self, asked: float) -> None:
        self.failures = 0
        self.wait(asked)

    def over(self) -> None:
        """End a wait, so that the same reason is reported again the next time."""
        self.reason = ""


def lasting(seconds: float) -> str:
    """Write a duration as a person says it: `45 s`, `25 min`, `3 h 20 min`."""
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"

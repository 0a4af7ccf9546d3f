"""Report a client's events as they happen: to a terminal, a log, or the program that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .format import shown

Detail = str | int | float | bool | None


@dataclass(frozen=True)
class Event:
    """Kinds are part of the interface: `spry join --json` prints them.

    enrolled, task, download, progress, uploaded, late, refused, failed, waiting, unreachable, reachable, warning,
    stopped
    """

    kind: str
    message: str
    details: Mapping[str, Detail] = field(default_factory=dict[str, Detail])

    def __post_init__(self) -> None:
        """Keep the message one line that steers no terminal, whatever a server, a bundle or a row says in it."""
        details = {name: shown(told) if isinstance(told, str) else told for name, told in self.details.items()}
        object.__setattr__(self, "message", shown(self.message))
        object.__setattr__(self, "details", details)


Tell = Callable[[Event], None]


def silent(event: Event, /) -> None:
    """Tell nobody."""

"""What is told of an export while it runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Progress(Protocol):
    """What is told of an export while it runs."""

    def stage(self, name: str, steps: int = 0) -> AbstractContextManager[None]:
        """A part of the work begins, and ends with the block; `steps` are told by `advance`."""
        ...

    def advance(self, what: str) -> None:
        """One step of the stage is done."""
        ...


class Silent:
    """For callers that want no progress."""

    def stage(self, name: str, steps: int = 0) -> AbstractContextManager[None]:
        """Tells nobody."""
        return nullcontext()

    def advance(self, what: str) -> None:
        pass

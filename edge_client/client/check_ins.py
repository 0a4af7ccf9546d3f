"""Build a device's check-ins, one each time it looks for a task."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from edge_client.errors import SpryError
from edge_client.memory import resident
from edge_client.wire.protocol import CheckedIn, CheckIn
from edge_client.wire.server import Server

from .conditions import Conditions
from .validation import DataValidation


@dataclass
class CheckIns:
    """A device's looks at the server."""

    server: Server
    conditions: Conditions
    validation: DataValidation
    job: str | None
    """The only one to take part in, by id or name."""
    only_sums: bool
    """Take part where the server learns sums of updates alone."""
    rows: int = 0
    """The number of the device's rows."""
    step_seconds: float | None = None
    """The seconds that a step of the newest round took."""
    resident_bytes: int | None = None
    """The most memory of this process and of those that it took over from."""

    def look(self, runtimes: list[str]) -> CheckedIn:
        """Tell what this device offers and how it does; a task, or how long to wait and why."""
        return self.server.check_in(
            CheckIn(
                runtimes=runtimes,
                examples=self.rows,
                memory_bytes=self.conditions.memory(),
                power=self.conditions.machine.power(),
                metered=self.conditions.is_metered(),
                job=self.job,
                step_seconds=self.step_seconds,
                resident_bytes=self.most_memory(),
                low_memory=self.conditions.low_memory,
                unfit=self.validation.look(self.server),
                sums=self.server.signing is not None,
                only_sums=self.only_sums,
                adds_noise=True,
            )
        )

    def most_memory(self) -> int | None:
        """Return the most memory that it took up to now; None where the system does not report it."""
        with suppress(OSError, SpryError):
            most = max(resident("VmHWM"), self.resident_bytes or 0)  # a round sets the system's mark back
            self.resident_bytes = most
        return self.resident_bytes

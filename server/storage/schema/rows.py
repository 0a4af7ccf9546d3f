"""Define the rows of the database for the rest of the server. Times are seconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from edge_client.wire.protocol import Report, Training

RoundState = Literal["open", "closing", "done", "failed"]
Role = Literal["viewer", "operator", "administrator"]
AssignmentState = Literal["open", "accepted", "refused", "failed", "expired", "spare"]
"""A round ends without an expired task because its time is up, without a spare one because it has enough updates."""


@dataclass(frozen=True)
class Round:
    """A round of a job."""

    job: str
    number: int
    state: RoundState
    version: int
    """The weights it started from."""
    opened: float
    started: float | None
    """The time at which the first device joined."""
    deadline: float | None
    """The deadline of the round, or of its open iteration."""
    closed: float | None
    iteration: int
    owner: str | None
    """The process that closes it."""
    lease: float | None
    """The end of the closing worker's lease."""
    fence: int
    """The number of claims so far: whoever closes the round has a number of its own."""
    in_time: bool | None
    """True if it was complete before it was given up; None while it takes reports."""
    result: dict[str, Any] | None

    def leaves(self, now: float) -> AssignmentState:
        """Return the state of an open assignment whose round goes on without it: "spare" if it was complete."""
        in_time = self.in_time
        if in_time is None:
            in_time = self.deadline is None or now < self.deadline
        return "spare" if in_time else "expired"


@dataclass(frozen=True)
class Sent:
    """A device's update at the end of its local training (mode epoch)."""

    sha256: str
    """The hash of the update, which is a blob."""
    report: Report
    norms: dict[str, float]
    """The norms of the update."""


@dataclass(frozen=True)
class Assignment:
    """A device's task in a round: a row of the table `tasks`; `Task` of the wire is the message about it."""

    id: str
    job: str
    round: int
    slot: int
    device: str
    seed: int
    units: tuple[int, ...]
    cut: int
    batch: int
    runtime: str
    state: AssignmentState
    reason: str
    created: float
    ended: float | None = None
    sent: Sent | None = None
    """The accepted report."""
    declared: int | None = None
    """The examples that the device had when it was assigned; None where it did not report it."""
    variant: dict[str, Any] | None = None
    """The settings of its training that are not the job's: what its device can hold."""
    base: int | None = None
    """The version of the weights that it began with, in a job whose rounds take what comes; None: its round's."""
    until: float | None = None
    """The deadline of its own, in such a job; None: its round's deadline."""

    def training(self, of_job: Training) -> Training:
        """Return the training of its device."""
        return replace(of_job, **self.variant) if self.variant else of_job


@dataclass(frozen=True)
class Reported:
    """An assignment whose report counts: its update, or scalars of the open iteration."""

    assignment: Assignment
    scalars: bytes = b""


@dataclass(frozen=True)
class Token:
    """A token that devices enrol with; its text is known to nobody here."""

    id: str
    label: str
    created: float
    expires: float
    uses: int
    max_uses: int
    revoked: bool
    at_once: int | None = None
    """The most of its devices that may have a task at the same time; None: all."""


@dataclass(frozen=True)
class Device:
    """A device that enrolled."""

    id: str
    hash: str
    """The hash of its secret."""
    name: str
    token: str
    created: float
    last_seen: float | None
    revoked: bool
    profile: dict[str, Any] | None
    """The content of its last check-in."""
    key: str | None = None
    """The key that it signs requests with; a device without one has a secret."""
    signed: int | None = None
    """The time of the newest request that it signed, in milliseconds."""
    note: str | None = None
    """The note that people wrote about it."""
    version: str | None = None
    """The version of its client."""


class Credentials(NamedTuple):
    """The key or the secret's hash by which a device is authenticated."""

    key: str | None
    hash: str
    """The hash of its secret, where it has no key."""


@dataclass(frozen=True)
class Person:
    """Somebody who may use the server, known by a token."""

    name: str
    role: Role
    created: float
    revoked: bool


@dataclass(frozen=True)
class Metric:
    """One number about one round."""

    round: int
    name: str
    value: float


@dataclass(frozen=True)
class Refused:
    """A report that was not taken."""

    id: int
    time: float
    device: str
    job: str | None
    round: int | None
    task: str | None
    code: str
    detail: str


@dataclass(frozen=True)
class Deed:
    """An entry of the audit log: who did what."""

    id: int
    time: float
    actor: str
    action: str
    subject: str
    detail: str


class Volume(NamedTuple):
    """Bytes that devices sent, and that they fetched."""

    up: int
    down: int

"""Define the wishes of a device's command line, in a form that passes from process to process."""

from __future__ import annotations

import os

import msgspec

from edge_client.client.conditions import Conditions, parse_hours
from edge_client.data.examples import BadRows
from edge_client.format import parse_bytes

_VARIABLE = "SPRY_JOIN"


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `spry join`, by their names."""

    server: str
    token: str | None
    data: str
    home: str | None
    job: str | None
    name: str | None
    runtime: str | None
    threads: int
    device: str
    ca: str | None
    trust: str | None
    bad_rows: BadRows
    holdout: float
    text: str
    pair: str
    label: str
    only_charging: bool
    unmetered_only: bool
    metered: bool
    max_memory: str | None
    low_memory: bool
    hours: str | None
    only_sums: bool
    once: bool
    rounds: int | None
    as_json: bool

    def conditions(self) -> Conditions:
        return Conditions(
            only_charging=self.only_charging,
            unmetered_only=self.unmetered_only,
            metered=self.metered,
            max_memory=parse_bytes(self.max_memory) if self.max_memory else None,
            low_memory=self.low_memory,
            hours=parse_hours(self.hours) if self.hours else None,
        )


def handing_over(wishes: Wishes) -> dict[str, str]:
    """Return the variable that tells another process. Only its user can read it, unlike a command line."""
    return {_VARIABLE: msgspec.json.encode(wishes).decode()}


def handed_over() -> Wishes:
    """Read what the process before this one handed over; the variable stays for the next one."""
    return msgspec.json.decode(os.environ[_VARIABLE], type=Wishes)

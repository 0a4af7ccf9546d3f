"""Decide when a device takes part: by its user's conditions, and the machine's state."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import Path
from time import monotonic

from edge_client.errors import SpryError
from edge_client.wire.protocol import Power

_METERED = {"1": True, "2": False, "3": True, "4": False}
"""NetworkManager's yes, no, and its two guesses."""
_DAY = 24 * 3600


@dataclass(frozen=True)
class Hours:
    """A part of the day, which may go across midnight."""

    start: time
    end: time

    def __contains__(self, now: time) -> bool:
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def until(self, now: time) -> float:
        """Seconds until it begins."""
        return (_seconds(self.start) - _seconds(now)) % _DAY

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


def parse_hours(text: str) -> Hours:
    """`22-6` or `22:30-6:15`, by the device's clock."""
    match = re.fullmatch(r"\s*(\d{1,2})(?::(\d{2}))?\s*-\s*(\d{1,2})(?::(\d{2}))?\s*", text)
    try:
        if match is None:
            raise ValueError(text)
        start, start_minute, end, end_minute = (int(part or 0) for part in match.groups())
        hours = Hours(_time(start, start_minute), _time(end, end_minute))
    except ValueError:
        raise SpryError(f"hours must look like 22-6 or 22:30-6:15, got {text!r}") from None
    if hours.start == hours.end:
        raise SpryError(f"hours {text!r} begin when they end; leave the option out for the whole day")
    return hours


def _time(hour: int, minute: int) -> time:
    return time(0 if (hour, minute) == (24, 0) else hour, minute)


ASK_AGAIN = 30.0
"""Seconds for which an answer about the network holds: to ask starts a process, and devices look often."""


@dataclass
class _Asked:
    answer: bool | None = None
    holds_until: float = -math.inf


@dataclass(frozen=True)
class Machine:
    """Read power, memory and network from the system."""

    supplies: Path = Path("/sys/class/power_supply")
    meminfo: Path = Path("/proc/meminfo")
    _network: _Asked = field(default_factory=_Asked, init=False, repr=False, compare=False)

    def power(self) -> Power:
        """Return the power source; a machine without a battery runs on mains."""
        if not self.supplies.is_dir():
            return "unknown"
        batteries: list[str] = []
        for supply in sorted(self.supplies.iterdir()):
            kind = _read(supply / "type")
            if kind in ("Mains", "USB") and _read(supply / "online") == "1":
                return "mains"
            if kind == "Battery" and _read(supply / "scope") != "Device":  # not that of a mouse
                batteries.append(_read(supply / "status"))
        if not batteries:
            return "mains"
        return "mains" if all(status in ("Charging", "Full", "Not charging") for status in batteries) else "battery"

    def free_memory(self) -> int | None:
        """Find how many bytes programs can still take without swapping."""
        match = re.search(r"^MemAvailable:\s*(\d+) kB", _read(self.meminfo), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):
            return None

    def metered(self) -> bool | None:
        """Ask NetworkManager whether the network is metered; None where it does not know or is not there."""
        asked, now = self._network, monotonic()
        if now >= asked.holds_until:
            asked.answer, asked.holds_until = self._ask_about_the_network(), now + ASK_AGAIN
        return asked.answer

    def _ask_about_the_network(self) -> bool | None:
        busctl = shutil.which("busctl")
        if busctl is None:
            return None
        name = "org.freedesktop.NetworkManager"
        command = [busctl, "get-property", name, f"/{name.replace('.', '/')}", name, "Metered"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return _METERED.get(done.stdout.strip().removeprefix("u "))


@dataclass(frozen=True)
class Abstention:
    """The reason why a device does not take part now, and the seconds until it looks again."""

    reason: str
    seconds: float


LOOK_AGAIN = 60.0


@dataclass(frozen=True)
class Conditions:
    """The conditions on which the user lets this device train."""

    only_charging: bool = False
    unmetered_only: bool = False
    metered: bool = False
    """The kind of network to assume where the system does not know."""
    max_memory: int | None = None
    """Bytes that training may take."""
    low_memory: bool = False
    """True if training holds one program at a time, which takes longer."""
    hours: Hours | None = None
    machine: Machine = field(default_factory=Machine)
    clock: Callable[[], datetime] = datetime.now

    def refusal(self) -> Abstention | None:
        now = self.clock().time()
        if self.hours is not None and now not in self.hours:
            return Abstention(f"it is outside the hours {self.hours}", self.hours.until(now))
        if self.only_charging and (power := self.machine.power()) != "mains":
            what = "the device runs on battery" if power == "battery" else "the system does not tell its power source"
            return Abstention(f"{what}, and --only-charging is set", LOOK_AGAIN)
        if self.unmetered_only and self.is_metered():
            return Abstention("the network is metered, and --unmetered-only is set", LOOK_AGAIN)
        return None

    def is_metered(self) -> bool:
        detected = self.machine.metered()
        return self.metered if detected is None else detected

    def memory(self) -> int | None:
        """Return the bytes that training may take now; None where neither user nor system says."""
        known = [value for value in (self.machine.free_memory(), self.max_memory) if value is not None]
        return min(known, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _seconds(moment: time) -> float:
    return moment.hour * 3600 + moment.minute * 60 + moment.second

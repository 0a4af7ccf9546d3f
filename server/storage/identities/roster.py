"""Devices that proved who they are, remembered in memory, so that those who only wait cost no question to the database.

A device stays known until it is revoked. Another worker may revoke it: what is revoked is read every second, and where
that was not done nobody is known, and the database is asked.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from server.storage.identities import devices
from server.storage.schema.database import Database
from server.storage.schema.rows import Credentials, Device

FRESH = 1.0
"""The seconds within which all workers learn of a revocation."""
_MOST = 300_000
"""The most devices that are kept in memory, of some 500 bytes each."""


class KnownDevices:
    """The devices that one process has looked up, and when each signed a request last."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, Credentials] = OrderedDict()
        self._signed: dict[str, int] = {}
        """The time of known devices' last accepted signature, in milliseconds."""
        self._versions: dict[str, str] = {}
        """The versions of known devices' clients."""
        self._read = self._asked = -FRESH
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="spry-roster")
        self._lock = threading.Lock()

    def load(self) -> None:
        """Know those whom a server before this one knew: a fleet that comes back is not looked up one by one."""
        with self._database.read() as connection:
            found = devices.credentials(connection, _MOST)
        with self._lock:
            for device, (credentials, signed) in reversed(found.items()):
                self._known[device] = credentials
                self._signed[device] = signed

    def known(self, device: str) -> Credentials | None:
        """Return a device's credentials without the database; None where the database must be asked."""
        now = time.monotonic()
        if device not in self._known:  # a stranger's name has nothing read
            return None
        if now > self._read + FRESH / 2 and now > self._asked + FRESH / 2:
            self._asked = now
            self._reader.submit(self._forget_revoked)
        return self._known.get(device) if now <= self._read + FRESH else None

    def remember(self, device: Device) -> None:
        """Note a device that has just shown its secret, and was not revoked."""
        with self._lock:
            self._known[device.id] = Credentials(device.key, device.hash)
            if len(self._known) > _MOST:
                oldest, _ = self._known.popitem(last=False)
                for kept in (self._signed, self._versions):
                    kept.pop(oldest, None)
            if time.monotonic() > self._read + FRESH / 2:
                self._forget_revoked()

    def is_newer(self, device: str, moment: int) -> bool:
        """Tell whether a request was signed after all that this process took of its device."""
        return moment > self._signed.get(device, 0)

    def spend(self, device: str, moment: int) -> None:
        """Remember a signature, so that it is not taken again."""
        with self._lock:
            if device in self._known:
                self._signed[device] = max(moment, self._signed.get(device, 0))

    def signed(self, names: Iterable[str]) -> dict[str, int]:
        """Return when devices signed last, for those that did."""
        with self._lock:
            return {name: self._signed[name] for name in names if name in self._signed}

    def note_version(self, device: str, version: str) -> None:
        """Note what version of the client a known device runs."""
        with self._lock:
            if version and device in self._known:
                self._versions[device] = version

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the versions that devices run, for those that report theirs."""
        with self._lock:
            return {name: self._versions[name] for name in names if name in self._versions}

    def forget(self, device: str) -> None:
        with self._lock:
            self._known.pop(device, None)

    def close(self) -> None:
        self._reader.shutdown()

    def _forget_revoked(self) -> None:
        began = time.monotonic()
        with self._database.read() as connection:
            for device in devices.revoked(connection):
                self._known.pop(device, None)
        self._read = began

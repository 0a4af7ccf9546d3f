"""What a request is answered with: the store and what works on it, and who is asking."""

from __future__ import annotations

import ipaddress
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any
from weakref import WeakValueDictionary

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from server.control.credentials import authenticate, require_admin
from server.rounds.offers import Offers
from server.rounds.reports import Reports
from server.storage import rows
from server.storage.store import Store


@dataclass(frozen=True)
class Services:
    """One for each process."""

    store: Store
    offers: Offers
    reports: Reports
    stopping: threading.Event
    shared: WeakValueDictionary[object, Any] = field(default_factory=WeakValueDictionary[object, Any])
    """What streams read together; gone with the last that reads it."""


def _services(request: Request) -> Services:
    return request.app.state.services


_BY_DEVICE = HTTPBearer(scheme_name="device", description="A device's `<id>.<secret>`", auto_error=False)
_BY_ADMIN = HTTPBearer(scheme_name="administrator", description="The administrator's token", auto_error=False)
OfDevice = Annotated[HTTPAuthorizationCredentials | None, Depends(_BY_DEVICE)]
OfAdmin = Annotated[HTTPAuthorizationCredentials | None, Depends(_BY_ADMIN)]


async def services(request: Request) -> Services:
    return _services(request)


def device(request: Request, sent: OfDevice) -> rows.Device:
    return authenticate(_services(request).store, sent.credentials if sent else "")


async def admin(request: Request, sent: OfAdmin) -> None:
    require_admin(_services(request).store, sent.credentials if sent else "")


def device_or_admin(request: Request, sent: OfDevice, _same: OfAdmin) -> rows.Device | None:
    """The device, or None for an administrator."""
    store = _services(request).store
    bearer = sent.credentials if sent else ""
    if bearer.startswith("d-"):
        return authenticate(store, bearer)
    require_admin(store, bearer)
    return None


def address(request: Request) -> str:
    """Where a request comes from, for limits and the audit log."""
    host = request.client.host if request.client else "unknown"
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host[:100]


UseServices = Annotated[Services, Depends(services)]
Device = Annotated[rows.Device, Depends(device)]
Admin = Depends(admin)
DeviceOrAdmin = Annotated[rows.Device | None, Depends(device_or_admin)]

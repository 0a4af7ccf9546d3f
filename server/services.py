"""What a request is answered with: the store and what works on it, and who is asking."""

from __future__ import annotations

import ipaddress
import threading
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Row

from server.credentials import authenticate, require_admin
from server.offers import Offers
from server.reports import Reports
from server.store import Store


@dataclass(frozen=True)
class Services:
    """One for each process."""

    store: Store
    offers: Offers
    reports: Reports
    stopping: threading.Event


def _services(request: Request) -> Services:
    return request.app.state.services


_bearer = HTTPBearer(auto_error=False, description="A device's `<id>.<secret>`, or the administrator's token")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def services(request: Request) -> Services:
    return _services(request)


def device(request: Request, credentials: Credentials) -> Row[Any]:
    return authenticate(_services(request).store, credentials.credentials if credentials else "")


async def admin(request: Request, credentials: Credentials) -> None:
    require_admin(_services(request).store, credentials.credentials if credentials else "")


def device_or_admin(request: Request, credentials: Credentials) -> Row[Any] | None:
    """The device, or None for an administrator."""
    store = _services(request).store
    bearer = credentials.credentials if credentials else ""
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
Device = Annotated[Row[Any], Depends(device)]
Admin = Depends(admin)
DeviceOrAdmin = Annotated[Row[Any] | None, Depends(device_or_admin)]

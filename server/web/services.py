"""Provide requests with the store and the services on it, and authenticate who asks."""

from __future__ import annotations

import ipaddress
import re
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any
from weakref import WeakValueDictionary

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from edge_client.wire.proofs import DIGEST_HEADER, SCHEME, digest_of
from server.control.credentials import authenticate
from server.control.people import Known, known, require, require_scraper
from server.control.proofs import Signed, authenticate_signed, require_digest
from server.rounds.arrivals.summands import Summands
from server.rounds.selection.offers import Offers
from server.storage.schema import rows
from server.storage.store import Store
from server.web.admission import once
from server.web.bodies import Uploads
from server.web.load import Load
from server.web.readiness import Readiness


@dataclass(frozen=True)
class Services:
    """The services of a process."""

    store: Store
    offers: Offers
    reports: Summands
    load: Load
    stopping: threading.Event
    readiness: Readiness
    uploads: Uploads = field(default_factory=Uploads)
    shared: WeakValueDictionary[object, Any] = field(default_factory=WeakValueDictionary[object, Any])
    """The channels that streams read together; gone with the last that reads one."""
    listening: set[object] = field(default_factory=set[object])
    """The open streams."""


def _services(request: Request) -> Services:
    return request.app.state.services


_CLIENT = re.compile(r"spry(-android)?/([\w.+-]{1,40})")
"""The names that devices give themselves."""
_BY_DEVICE = HTTPBearer(scheme_name="device", description="A device's `<id>.<secret>`", auto_error=False)
_BY_ADMIN = HTTPBearer(scheme_name="administrator", description="The administrator's token", auto_error=False)
_BY_SCRAPER = HTTPBearer(scheme_name="metrics", description="The setting `metrics_token`", auto_error=False)
OfScraper = Annotated[HTTPAuthorizationCredentials | None, Depends(_BY_SCRAPER)]
OfDevice = Annotated[HTTPAuthorizationCredentials | None, Depends(_BY_DEVICE)]
OfAdmin = Annotated[HTTPAuthorizationCredentials | None, Depends(_BY_ADMIN)]


async def services(request: Request) -> Services:
    return _services(request)


def signed(request: Request) -> Signed:
    """Read what a device signed; without a proof where it sent a secret instead."""
    scheme, _, proof = request.headers.get("Authorization", "").partition(" ")
    query, digest = request.scope["query_string"].decode("latin-1"), request.headers.get(DIGEST_HEADER, "")
    return Signed(proof if scheme == SCHEME else "", request.method, digest, query, request.scope["path"])


async def signed_body(request: Request) -> None:
    """Verify the signature of a body that is in memory by now."""
    head = signed(request)
    if head.proof:
        require_digest(head, digest_of(await request.body()))


def device(request: Request, sent: OfDevice) -> rows.Device:
    head, store = signed(request), _services(request).store
    found = authenticate_signed(store, head) if head.proof else authenticate(store, sent.credentials if sent else "")
    store.roster.note_version(found.id, version_in(request))
    return found


def version_in(request: Request) -> str:
    """Read the version of the client that a device runs; empty where it reports none."""
    client = _CLIENT.match(request.headers.get("User-Agent", ""))
    return client[2] + (" (Android)" if client[1] else "") if client else ""


def asking(request: Request, sent: OfAdmin) -> Known:
    return known(_services(request).store, sent.credentials if sent else "")


def viewer(request: Request, sent: OfAdmin) -> str:
    """Return the name of who asks; the same below for those who may do more."""
    return require(_services(request).store, sent.credentials if sent else "", "viewer")


def operator(request: Request, sent: OfAdmin) -> str:
    return require(_services(request).store, sent.credentials if sent else "", "operator")


def admin(request: Request, sent: OfAdmin) -> str:
    return require(_services(request).store, sent.credentials if sent else "", "administrator")


def device_or_admin(request: Request, sent: OfDevice, _same: OfAdmin) -> rows.Device | None:
    """Return the device, or None for a person."""
    store = _services(request).store
    bearer = sent.credentials if sent else ""
    if bearer.startswith("d-") or signed(request).proof:
        return device(request, sent)
    require(store, bearer, "viewer")
    return None


async def scraper(request: Request, sent: OfScraper) -> None:
    store = _services(request).store
    require_scraper(store, sent.credentials if sent else "")


def address(request: Request) -> str:
    """Return the address that a request comes from, for limits and the audit log."""
    host = request.client.host if request.client else "unknown"
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host[:100]


UseServices = Annotated[Services, Depends(services)]
ADevice = Depends(once(device))
Device = Annotated[rows.Device, ADevice]
SignedBody = Depends(signed_body)
Asking = Annotated[Known, Depends(once(asking))]
Viewer = Depends(once(viewer))
Operator = Depends(once(operator))
Scraper = Depends(once(scraper))
ByOperator = Annotated[str, Depends(once(operator))]
ByAdmin = Annotated[str, Depends(once(admin))]
"""Their names, for the audit log."""
DeviceOrAdmin = Annotated[rows.Device | None, Depends(once(device_or_admin))]

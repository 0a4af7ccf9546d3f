"""Devices: enrolment tokens, enrolment, check-in."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from annotated_types import Ge, Gt, Le, Len
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict

from edge_client.wire.protocol import CheckedIn, CheckIn, DeviceKey, Enrolled, Enrolment, OpenJob
from server.control import credentials, history
from server.control import devices as fleet
from server.control.devices import DeviceList, DeviceView
from server.control.history import DeviceHistory
from server.control.invitations import as_svg, check_address, invite
from server.control.jobs import asked_of_rows
from server.rounds.selection.fleet import away_before
from server.storage.identities.listing import DeviceOrder, DeviceQuery, DeviceState
from server.web.admission import Route
from server.web.bodies import takes
from server.web.services import ADevice, ByAdmin, ByOperator, Device, SignedBody, UseServices, Viewer, address

router = APIRouter(prefix="/v1", tags=["devices"], route_class=Route)

_DAY = 86_400.0
_ENROLMENT = 4 << 10
_CHECK_IN = 64 << 10


class NewToken(BaseModel):
    """An enrolment token's limits."""

    model_config = ConfigDict(extra="forbid")

    label: Annotated[str, Len(0, 100)] = ""
    uses: Annotated[int, Ge(1), Le(1_000_000)] = 1
    seconds: Annotated[float, Gt(0), Le(3650 * _DAY)] = 7 * _DAY
    at_once: Annotated[int, Ge(1), Le(1_000_000)] | None = None
    """The most of its devices that may have a task at the same time; all when left out."""
    server: Annotated[str, Len(0, 200)] = ""
    """The address by which devices reach this server: then the answer has an invitation."""
    key: Annotated[str, Len(0, 43)] = ""
    """The public key of the only publisher whose bundles the invited devices take."""


class TokenView(BaseModel):
    """A token without its text."""

    id: str
    label: str
    created: float
    expires: float
    uses: int
    max_uses: int
    revoked: bool
    at_once: int | None


class CreatedToken(TokenView):
    """A new token with its text, which is sent this once."""

    token: str
    invitation: str | None
    """The invitation, which `spry join` takes in place of an address and a token."""
    qr: str | None
    """The invitation as a picture (SVG)."""


class Note(BaseModel):
    """A line that people keep about a device."""

    model_config = ConfigDict(extra="forbid")

    note: Annotated[str, Len(0, 300)]


@router.post("/tokens", status_code=201)
def create_token(services: UseServices, by: ByOperator, wanted: NewToken) -> CreatedToken:
    """Make an enrolment token, and where an address is given, an invitation with its QR code."""
    check_address(wanted.server, wanted.key)
    limits = wanted.uses, wanted.seconds, by, wanted.at_once
    token, text = credentials.create_token(services.store, wanted.label, *limits)
    made = CreatedToken(**asdict(token), token=text, invitation=None, qr=None)
    if wanted.server:
        invitation = invite(wanted.server, text, wanted.key)
        made.invitation, made.qr = str(invitation), as_svg(invitation)
    return made


@router.get("/tokens", dependencies=[Viewer])
def list_tokens(services: UseServices) -> list[TokenView]:
    """List all enrolment tokens, without their texts."""
    return [TokenView(**asdict(token)) for token in credentials.list_tokens(services.store)]


@router.delete("/tokens/{token}", status_code=204)
def revoke_token(services: UseServices, by: ByAdmin, token: str) -> None:
    """Revoke a token; devices that enrolled with it stay."""
    credentials.revoke_token(services.store, token, by)


@router.post("/devices", status_code=201)
@takes(_ENROLMENT)
def enrol(services: UseServices, request: Request, enrolment: Enrolment) -> Enrolled:
    """Enrol as a device; the server sends the secret only once."""
    return credentials.enrol(services.store, enrolment, address(request))


@router.put("/device-key", dependencies=[SignedBody])
def put_key(services: UseServices, device: Device, message: DeviceKey) -> Enrolled:
    """Sign requests from now on, instead of sending a secret."""
    return credentials.take_key(services.store, device, message)


@router.get("/devices", dependencies=[Viewer])
def list_devices(services: UseServices) -> list[DeviceView]:
    """List all devices with their states; check-ins and bytes are up to some seconds old."""
    return fleet.list_devices(services.store, fleet.device_totals(services.store))


@router.get("/fleet", dependencies=[Viewer])
def search_devices(
    services: UseServices,
    search: Annotated[str, Query(max_length=100)] = "",
    state: DeviceState | None = None,
    group: Annotated[str | None, Query(max_length=20, description="The id of a token")] = None,
    failed: Annotated[bool, Query(description="Only those that failed within a day")] = False,
    order: DeviceOrder = "state",
    descending: bool = False,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> DeviceList:
    """Search, filter and sort devices, by pages; each with its group, its version and its last failure."""
    store = services.store
    since = store.now() - fleet.FAILED_SECONDS if failed else None
    wanted = DeviceQuery(away_before(store), search.strip(), state, group, since)
    return fleet.device_list(store, wanted, order, offset, limit, descending=descending)


@router.get("/devices/{device}", dependencies=[Viewer])
def show_device(services: UseServices, device: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> DeviceHistory:
    """Show a device with its newest parts and refusals, and the result of each."""
    return history.history_of(services.store, device, limit)


@router.put("/devices/{device}/note", status_code=204)
def write_note(services: UseServices, by: ByOperator, device: str, wanted: Note) -> None:
    """Keep a note about a device; an empty one removes it."""
    history.write_note(services.store, device, wanted.note, by)


@router.delete("/devices/{device}", status_code=204)
def revoke_device(services: UseServices, by: ByAdmin, device: str) -> None:
    """Revoke a device: the server takes nothing more from it."""
    credentials.revoke_device(services.store, device, by)


@router.get("/open-jobs", dependencies=[ADevice])
def open_jobs(services: UseServices) -> list[OpenJob]:
    """List the rows that running jobs need; a device checks its own before it takes a slot."""
    return asked_of_rows(services.store)


@router.post("/check-in", dependencies=[SignedBody])
@takes(_CHECK_IN)
def check_in(services: UseServices, device: Device, message: CheckIn) -> CheckedIn:
    """Ask for a task."""
    return services.offers.answer(device, message)

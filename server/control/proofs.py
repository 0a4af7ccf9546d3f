"""Requests that a device signed: by which device, when, and whether the body is the one that it signed."""

from __future__ import annotations

from typing import NamedTuple

from edge_client import keys
from edge_client.wire.proofs import SKEW, signed_text
from server.errors import Refusal
from server.storage import devices
from server.storage.rows import Device
from server.storage.store import Store


class Signed(NamedTuple):
    """A request's head, as it arrived."""

    proof: str
    """`DEVICE.TIME.SIGNATURE`."""
    method: str
    digest: str
    query: str
    path: str


def authenticate_signed(store: Store, request: Signed) -> Device:
    """The device that signed a request."""
    name, _, rest = request.proof.partition(".")
    moment, _, text = rest.partition(".")
    with store.database.read() as connection:
        device = devices.find(connection, name[:20])
    signature = keys.decoded(text, keys.SIGNATURE_BYTES)
    if device is None or not device.key or signature is None or not (moment.isdecimal() and len(moment) < 12):
        raise _unknown()
    signed = signed_text(request.method, int(moment), request.digest, request.query, request.path)
    if not keys.verify(device.key, signed, signature):
        raise _unknown()
    if device.revoked:
        raise Refusal(401, "unauthorized", "this device was revoked; enrol again with a token of `spry token create`")
    if abs(store.now() - int(moment)) > SKEW:
        raise Refusal(
            401,
            "unauthorized",
            f"the device signed this at {moment}, and here it is {store.now():.0f} (seconds since 1970): set its "
            f"clock, which may differ by {SKEW} seconds",
        )
    return device


def require_digest(request: Signed, digest: str) -> None:
    """Refuse a body that is not the one which the device signed."""
    if request.proof and request.digest != digest:
        raise Refusal(401, "unauthorized", "the body is not the one that the device signed: send the request again")


def _unknown() -> Refusal:
    return Refusal(401, "unauthorized", "unknown device or wrong key; enrol again with a token of `spry token create`")

"""Requests that a device signed: by which device, when, and whether the body is the one that it signed."""

from __future__ import annotations

from typing import NamedTuple

from edge_client import keys
from edge_client.wire.proofs import SKEW, signed_text
from server.errors import Refusal
from server.storage.identities import devices
from server.storage.schema.rows import Credentials, Device
from server.storage.store import Store

_DIGITS = 15
"""Fewer than these: of a time that is none, nothing is worked out."""
_MS = 1000


class Signed(NamedTuple):
    """A request's head, as it arrived."""

    proof: str
    """`DEVICE.TIME.SIGNATURE`."""
    method: str
    digest: str
    query: str
    path: str

    @property
    def device(self) -> str:
        """Read the device that a request claims to be from."""
        return self.proof.partition(".")[0]

    @property
    def moment(self) -> int | None:
        """The time of the signature as the request states it, in milliseconds since 1970."""
        text = self.proof.split(".", 2)[1] if self.proof.count(".") == 2 else ""
        return int(text) if text.isdecimal() and len(text) < _DIGITS else None

    def is_by(self, device: Device | Credentials) -> bool:
        """Tell whether a device's key made the signature, at any time."""
        signature = keys.decoded(self.proof.rpartition(".")[2], keys.SIGNATURE_BYTES)
        if not device.key or signature is None or self.moment is None:
            return False
        text = signed_text(self.method, self.moment, self.digest, self.query, self.path)
        return keys.verify(device.key, text, signature)

    def is_recent(self, now: float) -> bool:
        return self.moment is not None and abs(now - self.moment / _MS) <= SKEW


def authenticate_signed(store: Store, request: Signed) -> Device:
    """Return the device that signed a request."""
    with store.database.read() as connection:
        device = devices.find(connection, request.device[:20])
    moment = request.moment
    if device is None or moment is None or not request.is_by(device):
        raise Refusal(
            401, "unauthorized", "unknown device or wrong key; enrol again with a token of `spry token create`"
        )
    if device.revoked:
        raise Refusal(401, "unauthorized", "this device was revoked; enrol again with a token of `spry token create`")
    if not request.is_recent(store.now()):
        raise Refusal(
            401,
            "unauthorized",
            f"the device signed this at {moment / _MS:.0f}, and here it is {store.now():.0f} (seconds since 1970): set "
            f"its clock, which may differ by {SKEW} seconds",
        )
    _spend(store, device.id, moment)
    store.roster.remember(device)
    store.roster.spend(device.id, moment)
    return device


def _spend(store: Store, device: str, moment: int) -> None:
    """Take a request once, on any worker; a power cut may forget the last, so no disk is waited for."""
    if store.roster.is_newer(device, moment):
        with store.database.write(lasting=False) as connection:
            if devices.spend(connection, device, moment):
                return
    raise Refusal(
        425,
        "replayed",
        "this was signed no later than an earlier request of the device, so it may be a copy: sign it anew",
    )


def require_digest(request: Signed, digest: str) -> None:
    """Refuse a body that is not the one which the device signed."""
    if request.proof and request.digest != digest:
        raise Refusal(401, "unauthorized", "the body is not the one that the device signed: send the request again")

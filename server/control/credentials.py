"""Which devices may take part: enrolment tokens, and devices' secrets and keys.

Secrets are random, shown once and kept as sha256: nobody can guess 256 random bits, so a slow hash would add nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from edge_client.keys import KEY_BYTES, SIGNATURE_BYTES, decoded, verify
from edge_client.wire.proofs import enrolment_text, key_text
from edge_client.wire.protocol import DeviceKey, Enrolled, Enrolment
from server.errors import Refusal, not_found
from server.storage.identities import audit, devices
from server.storage.schema.rows import Device, Token
from server.storage.store import Store

_MINUTE, _DAY = 60.0, 86_400.0
ENROLMENT, ENROLMENT_REFUSED, KEY_CHANGED = "enrol", "enrol-refused", "device-key"
KEYS_A_DAY = 5
"""Key changes of a device in a day: an upgrade from a version without keys makes one, and people do by hand."""


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# --- enrolment tokens ------------------------------------------------------------------------------------------------


def create_token(
    store: Store, label: str, uses: int, seconds: float, by: str, at_once: int | None = None
) -> tuple[Token, str]:
    """Make a token and its text, which is nowhere else; `at_once` of its devices may have a task together."""
    text = secrets.token_urlsafe(24)
    now = store.now()
    token = Token(
        id=secrets.token_hex(4),
        label=label,
        created=now,
        expires=now + seconds,
        uses=0,
        max_uses=uses,
        revoked=False,
        at_once=at_once,
    )
    with store.database.write() as connection:
        devices.add_token(connection, token, digest(text))
        store.audit(connection, by, "token-created", token.id, label)
    return token, text


def list_tokens(store: Store) -> list[Token]:
    with store.database.read() as connection:
        return devices.list_tokens(connection)


def revoke_token(store: Store, token: str, by: str) -> None:
    """Revoke a token: no further device enrols with it; devices that did stay."""
    with store.database.write() as connection:
        if not devices.revoke_token(connection, token):
            raise not_found("token", token, "GET /v1/tokens")
        store.audit(connection, by, "token-revoked", token)


# --- devices ---------------------------------------------------------------------------------------------------------


def enrol(store: Store, enrolment: Enrolment, address: str) -> Enrolled:
    """Make a device of whoever has a token's text; one key is one device, whatever the tokens that it shows.

    A device that asks again with its token, as its first answer never reached it, gets the same answer: no use is
    lost. One that shows another token, as it was installed anew and its key was kept, is the device that it was and
    belongs to that token from then on. So is one that was revoked: its own token does not let it in again.
    """
    _limit_attempts(store, address)
    key, now = enrolment.public_key or None, store.now()
    if key:
        _check_proof(key, enrolment_text(enrolment.token, key), enrolment.proof)
    secret, made = "" if key else secrets.token_urlsafe(32), f"d-{secrets.token_hex(6)}"
    presented = digest(enrolment.token.partition(".")[0])
    with store.database.write() as connection:
        known = devices.of_key(connection, key) if key else None
        if known and not known.revoked and devices.token_of(connection, presented) == known.token:
            return Enrolled(known.id, "")
        token = devices.use_token(connection, presented, now, besides=known.token if known else None)
        device = known.id if known else made
        if token is None:
            store.audit(connection, address, ENROLMENT_REFUSED, enrolment.name)
        elif known:
            devices.enrol_again(connection, device, enrolment.name, token)
        else:
            devices.add(connection, device, digest(secret) if secret else "", enrolment.name, token, now, key)
        if token is not None:
            store.audit(connection, address, ENROLMENT, device, enrolment.name)
    if token is None:
        raise Refusal(
            401,
            "unauthorized",
            "the enrolment token is unknown, expired, used up or revoked; make one with `spry token create`",
        )
    store.roster.forget(device)
    return Enrolled(device, secret)


def _check_proof(key: str, text: bytes, proof: str) -> None:
    """Refuse a public key whose secret half is not shown to be there: it may be another device's."""
    if decoded(key, KEY_BYTES) is None:
        raise Refusal(422, "invalid", "the device's public key is invalid: expected 43 characters of base64url")
    signature = decoded(proof, SIGNATURE_BYTES)
    if signature is None or not verify(key, text, signature):
        raise Refusal(
            422,
            "invalid",
            "the device's public key comes without a proof that it is its own (proof); a device of an earlier version "
            "is to be upgraded before it enrols",
        )


def take_key(store: Store, device: Device, message: DeviceKey) -> Enrolled:
    """Let a device sign its requests from now on; a key that it has already is no change, so that it may ask again."""
    key, now = message.public_key, store.now()
    _check_proof(key, key_text(device.id, key), message.proof)
    with store.database.write() as connection:
        known = devices.of_key(connection, key)
        if known is None:
            changed = audit.times(connection, device.id, (KEY_CHANGED,), now - _DAY)
            if len(changed) >= KEYS_A_DAY:
                raise Refusal(
                    429,
                    "busy",
                    f"this device changed its key {KEYS_A_DAY} times in a day: wait until the first was a day ago",
                    retry_after=changed[0] + _DAY - now,
                )
            devices.set_key(connection, device.id, key)
            store.audit(connection, device.id, KEY_CHANGED, device.id)
        elif known.id != device.id:
            raise Refusal(
                409,
                "invalid",
                f"the key is that of device {known.id}: one key is one device; make another, or join as it",
            )
    store.roster.forget(device.id)
    return Enrolled(device.id, "")


def _limit_attempts(store: Store, address: str) -> None:
    """Counted in the audit log, so that all workers count together."""
    since = store.now() - _MINUTE
    with store.database.read() as connection:
        recent = audit.count(connection, address, (ENROLMENT, ENROLMENT_REFUSED), since)
        if recent >= store.settings.enrolments_per_minute:
            raise Refusal(
                429,
                "busy",
                f"more than {store.settings.enrolments_per_minute} enrolments a minute from {address}; wait a minute "
                "or raise SPRY_ENROLMENTS_PER_MINUTE",
                retry_after=_MINUTE,
            )


def authenticate(store: Store, bearer: str) -> Device:
    """Return the device that a request comes from."""
    name, _, secret = bearer.partition(".")
    with store.database.read() as connection:
        device = devices.find(connection, name)
    if device is None or device.revoked or not hmac.compare_digest(digest(secret), device.hash):
        revoked = device is not None and device.revoked
        why = "this device was revoked" if revoked else "unknown device or wrong secret"
        raise Refusal(401, "unauthorized", f"{why}; enrol again with a token of `spry token create`")
    store.roster.remember(device)
    return device


def revoke_device(store: Store, device: str, by: str) -> None:
    with store.database.write() as connection:
        if not devices.revoke(connection, device):
            raise not_found("device", device, "GET /v1/devices")
        store.audit(connection, by, "device-revoked", device)
    store.roster.forget(device)

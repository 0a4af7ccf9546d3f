"""Who may do what: enrolment tokens, devices' secrets, the administrator's token.

Secrets are random, shown once and kept as sha256: nobody can guess 256 random bits, so a slow hash would add nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any

from sqlalchemy import Row, and_, func, insert, select, update

from edge_client.wire.protocol import Enrolled, Enrolment
from server.errors import Refusal, not_found
from server.storage.store import Store
from server.storage.tables import audit, devices, tokens

_MINUTE = 60.0
ENROLMENT, ENROLMENT_REFUSED = "enrol", "enrol-refused"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# --- administrators --------------------------------------------------------------------------------------------------


def require_admin(store: Store, bearer: str) -> None:
    if not hmac.compare_digest(digest(bearer), digest(store.admin_token)):
        raise Refusal(
            401,
            "unauthorized",
            "this needs the administrator's token: send it as Authorization: Bearer …; "
            "the server keeps it in its data folder, file admin-token, or in SPRY_ADMIN_TOKEN",
        )


# --- enrolment tokens ------------------------------------------------------------------------------------------------


def create_token(store: Store, label: str, uses: int, seconds: float) -> dict[str, Any]:
    """A new token; its text is in the result and nowhere else."""
    text = secrets.token_urlsafe(24)
    now = store.now()
    number = secrets.token_hex(4)
    row = {
        "id": number,
        "label": label,
        "created": now,
        "expires": now + seconds,
        "uses": 0,
        "max_uses": uses,
        "revoked": False,
    }
    with store.database.write() as connection:
        connection.execute(insert(tokens).values(**row, hash=digest(text)))
        store.audit(connection, "admin", "token-created", number, label)
    return row | {"token": text}


def list_tokens(store: Store) -> list[dict[str, Any]]:
    with store.database.read() as connection:
        columns = [column for column in tokens.c if column.name != "hash"]
        return [dict(row) for row in connection.execute(select(*columns).order_by(tokens.c.created)).mappings()]


def revoke_token(store: Store, token: str) -> None:
    """No further device enrols with it; devices that did stay."""
    with store.database.write() as connection:
        if not connection.execute(update(tokens).where(tokens.c.id == token).values(revoked=True)).rowcount:
            raise not_found("token", token, "GET /v1/tokens")
        store.audit(connection, "admin", "token-revoked", token)


# --- devices ---------------------------------------------------------------------------------------------------------


def enrol(store: Store, enrolment: Enrolment, address: str) -> Enrolled:
    _limit_attempts(store, address)
    now = store.now()
    secret = secrets.token_urlsafe(32)
    device = "d-" + secrets.token_hex(6)
    with store.database.write() as connection:
        usable = and_(tokens.c.expires > now, tokens.c.uses < tokens.c.max_uses, tokens.c.revoked.is_(False))
        found = connection.execute(
            update(tokens)
            .where(tokens.c.hash == digest(enrolment.token), usable)
            .values(uses=tokens.c.uses + 1)
            .returning(tokens.c.id)
        ).scalar()
        if found is None:
            store.audit(connection, address, ENROLMENT_REFUSED, enrolment.name)
        else:
            connection.execute(
                insert(devices).values(
                    id=device, hash=digest(secret), name=enrolment.name, token=found, created=now, revoked=False
                )
            )
            store.audit(connection, address, ENROLMENT, device, enrolment.name)
    if found is None:
        raise Refusal(
            401,
            "unauthorized",
            "the enrolment token is unknown, expired, used up or revoked; make one with `spry token create`",
        )
    return Enrolled(device, secret)


def _limit_attempts(store: Store, address: str) -> None:
    """Counted in the audit log, so that all workers count together."""
    since = store.now() - _MINUTE
    actions = (ENROLMENT, ENROLMENT_REFUSED)
    recent = select(func.count()).where(audit.c.action.in_(actions), audit.c.actor == address, audit.c.time > since)
    with store.database.read() as connection:
        if (connection.scalar(recent) or 0) >= store.settings.enrolments_per_minute:
            raise Refusal(
                429,
                "busy",
                f"more than {store.settings.enrolments_per_minute} enrolments a minute from {address}; wait a minute "
                "or raise SPRY_ENROLMENTS_PER_MINUTE",
                retry_after=_MINUTE,
            )


def authenticate(store: Store, bearer: str) -> Row[Any]:
    """The device that a request comes from."""
    device, _, secret = bearer.partition(".")
    with store.database.read() as connection:
        row = connection.execute(select(devices).where(devices.c.id == device)).one_or_none()
    if row is None or row.revoked or not hmac.compare_digest(digest(secret), row.hash):
        revoked = row is not None and row.revoked
        why = "this device was revoked" if revoked else "unknown device or wrong secret"
        raise Refusal(401, "unauthorized", f"{why}; enrol again with a token of `spry token create`")
    return row


def revoke_device(store: Store, device: str) -> None:
    with store.database.write() as connection:
        if not connection.execute(update(devices).where(devices.c.id == device).values(revoked=True)).rowcount:
            raise not_found("device", device, "GET /v1/devices")
        store.audit(connection, "admin", "device-revoked", device)

"""Authorize people who run the server: viewers, operators and administrators, each by a token of their own."""

from __future__ import annotations

import hmac
import logging
import secrets
from typing import NamedTuple

from server.control.credentials import digest
from server.errors import Refusal, not_found
from server.storage.identities import people
from server.storage.schema.rows import Person, Role
from server.storage.store import Store

log = logging.getLogger("spry.server")

ADMIN = "admin"
"""The name in the audit log of whoever has the token of the data folder or the settings."""
ROLES: tuple[Role, ...] = ("viewer", "operator", "administrator")
"""The roles; each may do all that those before it may."""


class Known(NamedTuple):
    """The person or program that asks, and its role."""

    name: str
    role: Role


def note_token(store: Store) -> None:
    """Keep which administrator's token a server of several began with last, and say where it is another than before."""
    own = digest(store.admin_token)
    if store.database.is_sqlite:  # there is one server
        return
    with store.database.write() as connection:
        store.database.alone(connection)
        before = people.administrator(connection)
        people.note_administrator(connection, own)
    if before not in (None, own):
        log.warning(
            "the server that started last on this database had another administrator's token, and each takes only its "
            "own: give all of them one SPRY_ADMIN_TOKEN, and restart those that have an older one"
        )


def known(store: Store, bearer: str) -> Known:
    """Find whose token this is."""
    if hmac.compare_digest(digest(bearer), digest(store.admin_token)):
        return Known(ADMIN, "administrator")
    with store.database.read() as connection:
        person = people.find(connection, digest(bearer))
        newest = people.administrator(connection)
    if person is None and newest is not None and hmac.compare_digest(digest(bearer), newest):
        raise Refusal(
            401,
            "unauthorized",
            "another server on this database has this administrator's token, and the one that answers has not: give "
            "all of them one SPRY_ADMIN_TOKEN",
        )
    if person is None:
        raise Refusal(
            401,
            "unauthorized",
            "this needs the administrator's token: send it as Authorization: Bearer …; "
            "the server keeps it in its data folder, file admin-token, or in SPRY_ADMIN_TOKEN",
        )
    return Known(person.name, person.role)


def require(store: Store, bearer: str, role: Role) -> str:
    """Return the name of whoever asks, if they have this role or one above it."""
    asking = known(store, bearer)
    if ROLES.index(asking.role) < ROLES.index(role):
        raise Refusal(
            403,
            "forbidden",
            f"{asking.name} has the role {asking.role}, and this takes {role}: ask an administrator for a token of "
            "`spry access create`",
        )
    return asking.name


def require_scraper(store: Store, bearer: str) -> None:
    """Require the token that is set for metrics, if one is; a person's does as well."""
    wanted = store.settings.metrics_token.get_secret_value()
    if not wanted or hmac.compare_digest(digest(bearer), digest(wanted)):
        return
    try:
        known(store, bearer)
    except Refusal:
        told = "metrics need the token of SPRY_METRICS_TOKEN: send it as Authorization: Bearer …"
        raise Refusal(401, "unauthorized", told) from None


def create(store: Store, name: str, role: Role, by: str) -> tuple[Person, str]:
    """Create a person and the text of their token, which is nowhere else."""
    text = secrets.token_urlsafe(32)
    person = Person(name=name, role=role, created=store.now(), revoked=False)
    with store.database.write() as connection:
        if name == ADMIN or people.is_taken(connection, name):
            raise Refusal(409, "exists", f"the name {name!r} is or was somebody's; choose another")
        people.add(connection, person, digest(text))
        store.audit(connection, by, "access-created", name, role)
    return person, text


def everybody(store: Store) -> list[Person]:
    with store.database.read() as connection:
        return people.everybody(connection)


def revoke(store: Store, name: str, by: str) -> None:
    with store.database.write() as connection:
        if not people.revoke(connection, name):
            raise not_found("person", name, "GET /v1/access")
        store.audit(connection, by, "access-revoked", name)

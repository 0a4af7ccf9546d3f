"""People who run the server, and the tokens that they are known by. All of these are steps of a transaction."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, and_, delete, insert, select, update

from server.storage.schema.rows import Person
from server.storage.schema.tables import about, people

_ADMINISTRATOR = about.c.key == "administrator"


def add(connection: Connection, person: Person, digest: str) -> None:
    connection.execute(insert(people).values(**asdict(person), hash=digest))


def everybody(connection: Connection) -> list[Person]:
    """List all people, the oldest first, those whose token was revoked too."""
    columns = [column for column in people.c if column.name != "hash"]
    return [Person(**row) for row in connection.execute(select(*columns).order_by(people.c.created)).mappings()]


def find(connection: Connection, digest: str) -> Person | None:
    """Find the person whose token has this digest, unless it was revoked."""
    columns = [column for column in people.c if column.name != "hash"]
    query = select(*columns).where(people.c.hash == digest, people.c.revoked.is_(False))
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else Person(**row)


def is_taken(connection: Connection, name: str) -> bool:
    """Tell whether a name is taken; it stays so, as it is in the audit log."""
    return connection.scalar(select(people.c.name).where(people.c.name == name)) is not None


def revoke(connection: Connection, name: str) -> bool:
    """Revoke a person's token; False if nobody of this name has a valid one."""
    known = and_(people.c.name == name, people.c.revoked.is_(False))
    return bool(connection.execute(update(people).where(known).values(revoked=True)).rowcount)


def administrator(connection: Connection) -> str | None:
    """Look up the digest of the administrator's token that a server began with last."""
    return connection.scalar(select(about.c.value).where(_ADMINISTRATOR))


def note_administrator(connection: Connection, digest: str) -> None:
    connection.execute(delete(about).where(_ADMINISTRATOR))
    connection.execute(insert(about).values(key="administrator", value=digest))

"""Keep the names that people give bundles. Every function is a step of its caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from server.storage.schema.tables import bundles


def names(connection: Connection) -> dict[str, str]:
    """Return the names of the bundles that have one."""
    query = select(bundles.c.sha256, bundles.c.name).where(bundles.c.name.is_not(None))
    return dict(connection.execute(query).all())


def set_name(connection: Connection, bundle: str, name: str, now: float) -> None:
    """Call a bundle by a name, an empty one by none; the database may hear of the bundle only now."""
    named = update(bundles).where(bundles.c.sha256 == bundle).values(name=name or None)
    if not connection.execute(named).rowcount:
        connection.execute(insert(bundles).values(sha256=bundle, created=now, name=name or None))

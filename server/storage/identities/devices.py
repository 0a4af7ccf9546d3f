"""Devices, and the tokens that they enrol with. All of these are steps of their caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import BigInteger, Connection, String, and_, bindparam, case, func, insert, select, update

from edge_client.wire.protocol import CheckIn
from server.storage.schema.rows import Credentials, Device, Token
from server.storage.schema.tables import about, devices, jobs, tasks, tokens

_READ_TOGETHER = 200
"""Rows of a fleet that are in memory at once."""
_heard = func.coalesce(devices.c.last_seen, devices.c.created)

# --- tokens ----------------------------------------------------------------------------------------------------------


def add_token(connection: Connection, token: Token, digest: str) -> None:
    connection.execute(insert(tokens).values(**asdict(token), hash=digest))


def list_tokens(connection: Connection) -> list[Token]:
    """List the tokens, the oldest first."""
    columns = [column for column in tokens.c if column.name != "hash"]
    return [Token(**row) for row in connection.execute(select(*columns).order_by(tokens.c.created)).mappings()]


def token_of(connection: Connection, digest: str) -> str | None:
    """Return the id of the token with this digest, even if it lets nobody in."""
    return connection.scalar(select(tokens.c.id).where(tokens.c.hash == digest))


def use_token(connection: Connection, digest: str, now: float, besides: str | None = None) -> str | None:
    """Spend one use of the token with this digest and return its id; None where it has none left.

    `besides` names a token that does not count.
    """
    usable = and_(tokens.c.expires > now, tokens.c.uses < tokens.c.max_uses, tokens.c.revoked.is_(False))
    if besides is not None:
        usable = and_(usable, tokens.c.id != besides)
    used = update(tokens).where(tokens.c.hash == digest, usable).values(uses=tokens.c.uses + 1)
    return connection.execute(used.returning(tokens.c.id)).scalar()


def revoke_token(connection: Connection, token: str) -> bool:
    """Revoke a token; False if there is none."""
    return bool(connection.execute(update(tokens).where(tokens.c.id == token).values(revoked=True)).rowcount)


def label_of(connection: Connection, token: str) -> str:
    return connection.execute(select(tokens.c.label).where(tokens.c.id == token)).scalar_one()


def limit_of(connection: Connection, token: str) -> tuple[str, int | None]:
    """Return a token's label and how many of its devices may have a task at once, locked until the transaction ends."""
    query = select(tokens.c.label, tokens.c.at_once).where(tokens.c.id == token).with_for_update()
    label, at_once = connection.execute(query).one()
    return label, at_once


def count_at_work(connection: Connection, token: str) -> int:
    """Devices that enrolled with a token and have a task."""
    query = select(func.count()).select_from(devices).join(tasks, tasks.c.device == devices.c.id)
    return connection.scalar(query.where(devices.c.token == token, tasks.c.state == "open")) or 0


# --- devices ---------------------------------------------------------------------------------------------------------


def add(
    connection: Connection, device: str, digest: str, name: str, token: str, now: float, key: str | None = None
) -> None:
    connection.execute(
        insert(devices).values(id=device, hash=digest, name=name, token=token, created=now, revoked=False, key=key)
    )


def set_key(connection: Connection, device: str, key: str) -> None:
    """Set a device's key; its secret becomes invalid."""
    connection.execute(update(devices).where(devices.c.id == device).values(key=key, hash=""))


def spend(connection: Connection, device: str, moment: int) -> bool:
    """Take a request that was signed at a time, in milliseconds: none is taken that is not newer than all before."""
    is_newer = func.coalesce(devices.c.signed, 0) < moment
    return bool(
        connection.execute(update(devices).where(devices.c.id == device, is_newer).values(signed=moment)).rowcount
    )


def find(connection: Connection, device: str) -> Device | None:
    row = connection.execute(select(devices).where(devices.c.id == device)).mappings().one_or_none()
    return None if row is None else Device(**row)


def of_key(connection: Connection, key: str) -> Device | None:
    """Return the device of this key, and lock: until the transaction ends nobody else becomes one by it.

    Earlier versions made one for each token: the first that is not revoked counts.
    """
    connection.execute(select(about).where(about.c.key == "schema").with_for_update())
    query = select(devices).where(devices.c.key == key).order_by(devices.c.revoked, devices.c.created).limit(1)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else Device(**row)


def enrol_again(connection: Connection, device: str, name: str, token: str) -> None:
    """Let in a device that is known, by another token, whose it is from now on."""
    values = {"name": name, "token": token, "revoked": False}
    connection.execute(update(devices).where(devices.c.id == device).values(values))


def revoke(connection: Connection, device: str) -> bool:
    """Revoke a device; False if there is none."""
    return bool(connection.execute(update(devices).where(devices.c.id == device).values(revoked=True)).rowcount)


def revoked(connection: Connection) -> list[str]:
    """List the ids of revoked devices."""
    return list(connection.execute(select(devices.c.id).where(devices.c.revoked.is_(True))).scalars())


def names(connection: Connection, among: Collection[str]) -> dict[str, str]:
    query = select(devices.c.id, devices.c.name).where(devices.c.id.in_(among))
    return dict(connection.execute(query).all())


def set_note(connection: Connection, device: str, note: str) -> bool:
    """Set a device's note; False if there is no such device."""
    return bool(connection.execute(update(devices).where(devices.c.id == device).values(note=note or None)).rowcount)


def with_jobs(connection: Connection, device: str | None = None) -> list[tuple[Device, str | None]]:
    """Return all devices, the oldest first, or one, each with the name of the job that it works on."""
    has_part = and_(tasks.c.device == devices.c.id, tasks.c.state == "open")
    query = (
        select(devices, jobs.c.name.label("job"))
        .outerjoin_from(devices, tasks, has_part)
        .outerjoin(jobs, jobs.c.id == tasks.c.job)
        .order_by(devices.c.created, devices.c.id)
    )
    if device is not None:
        query = query.where(devices.c.id == device)
    return [_with_job(**row) for row in connection.execute(query).mappings()]


def _with_job(*, job: str | None, **device: Any) -> tuple[Device, str | None]:
    return Device(**device), job


def heard_since(connection: Connection, since: float, most: int | None = None) -> Iterator[Device]:
    """Read devices that enrolled or checked in after a time, without revoked ones, one after the other."""
    query = select(devices).where(devices.c.revoked.is_(False), _heard > since).limit(most)
    found = connection.execute(query.execution_options(yield_per=_READ_TOGETHER))
    try:
        for row in found.mappings():
            yield Device(**row)
    finally:  # whoever has seen enough leaves the rest
        found.close()


def ids_heard_since(connection: Connection, since: float) -> set[str]:
    """Find the ids of devices that enrolled or checked in after a time, without revoked ones."""
    return set(connection.scalars(select(devices.c.id).where(devices.c.revoked.is_(False), _heard > since)))


def credentials(connection: Connection, most: int) -> dict[str, tuple[Credentials, int]]:
    """Read the credentials of devices that are not revoked, the latest first, and when each signed last."""
    columns = devices.c.id, devices.c.key, devices.c.hash, devices.c.signed
    query = select(*columns).where(devices.c.revoked.is_(False)).order_by(_heard.desc()).limit(most)
    found = connection.execute(query.execution_options(yield_per=_READ_TOGETHER))
    return {device: (Credentials(key, digest), signed or 0) for device, key, digest, signed in found}


def newest_heard(connection: Connection) -> float | None:
    """Return when any device checked in last; None where there is none."""
    return connection.scalar(select(func.max(_heard)))


def note_check_ins(
    connection: Connection,
    seen: Mapping[str, tuple[float, CheckIn]],
    signed: Mapping[str, int],
    versions: Mapping[str, str],
) -> None:
    """Record devices' check-ins: their time, content, the time of their signature in milliseconds, and the version."""
    rows = [
        {
            "device": device,
            "seen": time,
            "moment": signed.get(device, 0),
            "runs": versions.get(device),
            "said": {
                "runtimes": check_in.runtimes, "memory_bytes": check_in.memory_bytes, "power": check_in.power,
                "metered": check_in.metered, "examples": check_in.examples, "job": check_in.job,
                "step_seconds": check_in.step_seconds, "resident_bytes": check_in.resident_bytes,
                "low_memory": check_in.low_memory, "unfit": check_in.unfit, "sums": check_in.sums,
                "only_sums": check_in.only_sums,
            },
        }
        for device, (time, check_in) in seen.items()
    ]  # fmt: skip
    moment = bindparam("moment", type_=BigInteger)
    runs = func.coalesce(bindparam("runs", type_=String), devices.c.version)
    newest = case((func.coalesce(devices.c.signed, 0) < moment, moment), else_=devices.c.signed)
    noted = (
        update(devices)
        .where(devices.c.id == bindparam("device"))
        .values(last_seen=bindparam("seen"), profile=bindparam("said"), signed=newest, version=runs)
    )
    connection.execute(noted, rows)


# --- counted ---------------------------------------------------------------------------------------------------------


def count(connection: Connection) -> int:
    """Revoked ones too."""
    return connection.scalar(select(func.count()).select_from(devices)) or 0


def count_heard(connection: Connection, since: float) -> int:
    """Find devices that enrolled or checked in after a time, without revoked ones."""
    return connection.scalar(select(func.count()).where(devices.c.revoked.is_(False), _heard > since)) or 0


def count_enrolled(connection: Connection) -> int:
    return connection.scalar(select(func.count()).where(devices.c.revoked.is_(False))) or 0


def count_seen(connection: Connection, since: float) -> int:
    return connection.scalar(select(func.count()).where(devices.c.last_seen > since)) or 0

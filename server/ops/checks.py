"""Check a machine that holds, or is to hold, a server's data, for `spry doctor`."""

from __future__ import annotations

import os
import resource
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_client.commands.doctor.machine import Finding, Scope, disk, writable
from edge_client.commands.doctor.network import expiry
from edge_client.distribution import install_command
from edge_client.errors import SpryError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from server.settings import Settings
    from server.storage.schema.database import Database

_LIBRARIES = "fastapi", "sqlalchemy", "pydantic_settings", "uvicorn"
_FEW_FILES = 4096
"""The fewest files that a process may open: each device that is connected takes one."""


def server(asked: Scope) -> Iterator[Finding]:
    """Check the server's data and certificate, those that are named."""
    if asked.data is not None:
        yield from _data(asked.data)
    if asked.tls_cert is not None:
        yield _certificate(asked.tls_cert, asked.tls_key)


def _data(folder: Path) -> Iterator[Finding]:
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        problem = f"{folder} is a server's, but {', '.join(missing)} is not installed"
        yield Finding("server's libraries", "problem", problem, f"run: {install_command('server')}")
        return
    from server.settings import read_settings

    try:
        settings = read_settings(data_dir=folder)
    except SpryError as error:
        yield Finding("settings", "problem", str(error), "set them right (docs/server.md has them all)")
        return
    yield Finding("settings", "ok", "can be used")
    yield writable("data folder", folder)
    yield disk("disk of the data", folder)
    yield _open_files()
    if folder.is_dir():
        yield _admin_token(folder, settings)
        yield from _kept(folder, settings)


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft:,}"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        advice = "run: ulimit -n 65536 (a unit of `spry install-service` has LimitNOFILE already)"
        return Finding("open files", "warning", f"{limit}, and each connected device takes one", advice)
    return Finding("open files", "ok", limit)


def _admin_token(folder: Path, settings: Settings) -> Finding:
    from server.names import ADMIN_TOKEN

    name, path = "administrator's token", folder / ADMIN_TOKEN
    if settings.admin_token.get_secret_value():
        return Finding(name, "ok", "given by the settings")
    if not path.is_file():
        return Finding(name, "ok", "made at the first start")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return Finding(name, "problem", f"{path} can be read by other users ({mode:o})", f"run: chmod 600 {path}")
    if not os.access(path, os.R_OK):
        return Finding(name, "warning", f"{path} belongs to another user", "run this as the user that the server has")
    return Finding(name, "ok", f"{path}, for its owner alone")


# --- what is kept ----------------------------------------------------------------------------------------------------


def _kept(folder: Path, settings: Settings) -> Iterator[Finding]:
    from sqlalchemy.exc import DatabaseError

    from server.storage.schema.database import Database, database_file

    if not settings.database_url and not database_file(folder).is_file():
        yield Finding("database", "ok", "made at the first start")
        return
    try:
        database = Database(settings.database_url, folder)
    except (SpryError, DatabaseError) as error:
        advice = "restore a backup (spry restore)" if not settings.database_url else "start it, or correct the address"
        yield Finding("database", "problem", " ".join(str(error).split()), advice)
        return
    try:
        with database.read() as connection:
            yield _database(database, connection)
            yield from _shared(settings, database, connection) if settings.blob_store else _files(connection, folder)
    except DatabaseError as error:
        yield Finding("database", "problem", " ".join(str(error.orig).split()), "restore a backup (spry restore)")
    finally:
        database.close()


def _database(database: Database, connection: Connection) -> Finding:
    from server.storage import jobs
    from server.storage.identities import devices
    from server.storage.schema.tables import SCHEMA

    if damage := database.damage(connection):
        return Finding("database", "problem", f"damaged: {damage}", "restore a backup (spry restore)")
    kind, counts = "SQLite" if database.is_sqlite else "PostgreSQL", (jobs.count(connection), devices.count(connection))
    return Finding("database", "ok", f"{kind}, schema {SCHEMA}; jobs: {counts[0]}, devices: {counts[1]}")


def _files(connection: Connection, folder: Path) -> Iterator[Finding]:
    """Check the files that the database names: all there, of the right size."""
    from server.ops.contents import contents

    files = contents(connection, folder)
    for name, kept in (("bundles", files.bundles), ("blobs", files.blobs)):
        missing = [file for file in kept if not file.is_whole(folder)]
        if missing:
            problem = f"{len(missing)} of {len(kept)} files are missing or cut short, such as {missing[0].path}"
            advice = "upload the bundle again (spry job create)" if name == "bundles" else "restore a backup"
            yield Finding(name, "problem", problem, advice)
        else:
            yield Finding(name, "ok", f"{len(kept)} files, all there")


def _shared(settings: Settings, database: Database, connection: Connection) -> Iterator[Finding]:
    """Check the files in the home that servers share, by what is there."""
    from edge_client.bundle.manifest import FILE_NAME
    from server.ops.contents import BLOBS, BUNDLES
    from server.storage.files import references
    from server.storage.files.shared import open_store

    try:
        home = open_store(settings.blob_store, database)
        assert home is not None  # it was asked whether there is one
        there = {name: home.below(name).keys() for name in (BUNDLES, BLOBS)}
    except SpryError as error:
        yield Finding("shared files", "problem", str(error), "correct SPRY_BLOB_STORE and its AWS_* variables")
        return
    blobs = {f"{BLOBS}/{sha[:2]}/{sha}" for sha in references.needed_blobs(connection)}
    manifests = {f"{BUNDLES}/{name}/{FILE_NAME}" for name in references.bundle_names(connection)}
    for name, named in ((BUNDLES, manifests), (BLOBS, blobs)):
        if missing := sorted(named - there[name]):
            problem = f"{len(missing)} of {len(named)} are missing in {home.name}, such as {missing[0]}"
            yield Finding(name, "problem", problem, "put them back from a version or a copy of the bucket")
        else:
            yield Finding(name, "ok", f"{len(named)} in {home.name}, all there")


# --- the certificate -------------------------------------------------------------------------------------------------


def _certificate(certificate: Path, key: Path | None) -> Finding:
    name = "certificate to show"
    if key is None:
        return Finding(name, "problem", f"{certificate} without its key", "give --tls-key too")
    if key.is_file() and key.stat().st_mode & 0o077:
        return Finding(name, "warning", f"{key} can be read by other users", f"run: chmod 600 {key}")
    try:
        return expiry(name, _shown(certificate, key), time.time())
    except (OSError, ssl.SSLError) as error:
        advice = "give a certificate that is valid now and its own key, both as PEM"
        return Finding(name, "problem", f"{certificate} with {key}: {error}", advice)


def _shown(certificate: Path, key: Path) -> Mapping[str, Any]:
    """Play a client's handshake in memory, with the certificate itself as all that is trusted."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up)
    server_ = serving.wrap_bio(up, down, server_side=True)
    for side in (client, server_, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert() or {}

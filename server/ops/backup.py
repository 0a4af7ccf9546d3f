"""A copy of all that a server keeps, taken while it runs.

One transaction sees the database as it is at one moment. Within it the files that the database names are held, by a
second name for each below `.backup` in the data folder, so that the server may forget them meanwhile, and the database
is copied. Only then are they written to the archive, which may take its time. Files never change, so no byte of them
can be of another moment.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection, make_url, text

from edge_client import __version__
from edge_client.bundle.folder import sha256
from edge_client.errors import SpryError
from edge_client.store.files import sync_folder
from server.names import ADMIN_TOKEN
from server.ops.archive import DUMP, FORMAT, Advance, Entry, Index, write
from server.ops.contents import File, contents
from server.processes import held
from server.settings import Settings
from server.storage.schema.database import Database, database_file

PG_DUMP = "pg_dump --format=custom"
_HELD = ".backup"
Take = Callable[[Connection, Path], None]
"""Copies the database, as a transaction sees it, to a file."""


class BackupError(SpryError):
    """A backup cannot be made."""


def back_up(settings: Settings, out: Path, advance: Advance, *, dump: str = PG_DUMP) -> Index:
    """Write the archive `out`; `advance` takes the bytes written and in all.

    Args:
        settings: the server's.
        out: a file that does not exist yet; it appears whole or not at all.
        advance: takes the progress.
        dump: the program that writes a PostgreSQL database to its standard output.
    """
    folder = settings.data_dir.absolute()
    if not settings.database_url and not database_file(folder).is_file():
        raise BackupError(f"{folder} holds no server's data; name the data folder with --data")
    if settings.blob_store:
        raise BackupError(
            f"this server's files are in {settings.blob_store} (SPRY_BLOB_STORE), of which no data folder has all: "
            "pg_dump copies the database, with the files that are in it, and a bucket keeps versions of its own"
        )
    if out.exists():
        raise BackupError(f"{out} exists; choose another --out")
    if not out.absolute().parent.is_dir():
        raise BackupError(f"the folder {out.absolute().parent} does not exist; make it, or choose another --out")
    database = Database(settings.database_url, folder)
    try:
        with _second_names(folder) as names:
            take = _copy_sqlite if database.is_sqlite else _pg_dump(settings, dump)
            files = _moment(database, folder, names, take)
            index = _index(names, files, kind="sqlite" if database.is_sqlite else "postgresql")
            write(out, names, index, advance)
    finally:
        database.close()
    return index


@contextmanager
def _second_names(folder: Path) -> Generator[Path]:
    """Yield a folder for second names, without what an earlier backup left there when it was killed."""
    names = folder / _HELD
    with held(folder / f"{_HELD}.lock", BackupError(f"another backup of {folder} is under way; wait for it")):
        shutil.rmtree(names, ignore_errors=True)
        names.mkdir(mode=0o700)
        try:
            yield names
        finally:
            shutil.rmtree(names, ignore_errors=True)


def _moment(database: Database, folder: Path, names: Path, take: Take) -> list[File]:
    """Hold all of one moment.

    The server forgets a file after the database has: one that goes between the look at the database and its second name
    is not in the next look, and one that is has been lost for good.
    """
    lost = ""
    while True:
        with database.read() as connection:
            if not database.is_sqlite:
                connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            named = contents(connection, folder)
            files = [*named.bundles, *named.blobs]
            try:
                for file in files:
                    _hold(folder / file.path, names / file.path)
            except FileNotFoundError as error:
                if error.filename == lost:
                    raise BackupError(
                        f"{lost} is missing, which the database names; see `spry doctor --data {folder}`"
                    ) from None
                lost = error.filename
            else:
                take(connection, names / (database_file(folder).name if database.is_sqlite else DUMP))
                return files


def _hold(file: Path, name: Path) -> None:
    if name.exists():
        return
    name.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, name)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without second names, or a folder on another disk
        shutil.copyfile(file, name)


def _index(names: Path, files: list[File], kind: str) -> Index:
    """The database first: whoever restores knows at once whether it is of use."""
    folder = names.parent
    database = database_file(names) if kind == "sqlite" else names / DUMP
    entries = [Entry(database.name, sha256(database), database.stat().st_size)]
    token = folder / ADMIN_TOKEN
    if token.is_file():
        shutil.copy(token, names / token.name)
        entries.append(Entry(token.name, sha256(names / token.name), token.stat().st_size))
    entries += [Entry(file.path, file.sha256, (names / file.path).stat().st_size) for file in files]
    return Index(FORMAT, __version__, time.time(), kind, entries)


# --- databases -------------------------------------------------------------------------------------------------------


def _copy_sqlite(connection: Connection, out: Path) -> None:
    source = connection.connection.driver_connection
    assert isinstance(source, sqlite3.Connection)
    with closing(sqlite3.connect(out)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file; the server that opens it sets its own
        with target:  # the process that closes a round is not there where this is restored
            target.execute("UPDATE rounds SET lease = 0 WHERE state = 'closing'")
    sync_folder(out.parent)


def _pg_dump(settings: Settings, command: str) -> Take:
    url = make_url(settings.database_url)
    known = {
        "PGHOST": url.host or url.query.get("host"),
        "PGPORT": url.port or url.query.get("port"),
        "PGUSER": url.username,
        "PGPASSWORD": url.password,
        "PGDATABASE": url.database,
    }
    environment = os.environ | {name: str(value) for name, value in known.items() if value}

    def take(connection: Connection, out: Path) -> None:
        moment = connection.scalar(text("SELECT pg_export_snapshot()"))
        with out.open("wb") as file, tempfile.TemporaryFile() as errors:
            try:
                words = [*shlex.split(command), f"--snapshot={moment}"]
                done = subprocess.run(words, stdout=file, stderr=errors, env=environment, check=False)
            except OSError as error:
                raise BackupError(
                    f"{command!r} cannot be run ({error.strerror}); install PostgreSQL's client programs, or name "
                    "another command with --dump"
                ) from None
            errors.seek(0)
            told = errors.read().decode(errors="replace").strip().splitlines()
        if done.returncode or not out.stat().st_size:
            reason = told[-1] if told else f"exit code {done.returncode}"
            raise BackupError(
                f"{command!r} failed: {reason}; no backup was written: correct SPRY_DATABASE_URL, or the command with "
                "--dump"
            )

    return take


def describe(index: Index) -> dict[str, object]:
    """Describe an archive for scripts."""
    return {
        "spry": index.spry,
        "created": index.created,
        "database": index.database,
        "files": len(index.files),
        "bytes": index.bytes,
    }

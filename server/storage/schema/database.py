"""The database's connection: short transactions, writers one after the other.

SQLite runs in WAL mode: readers never wait, and a committed transaction outlives a power cut. A write transaction takes
SQLite's lock at its beginning (or, on PostgreSQL, locks the rows that it selects for update), so that what it read
still holds when it writes.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, delete, event, func, insert, inspect, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateColumn

from server.errors import ServerConfigError
from server.storage.schema.tables import SCHEMA, about, schema

_WRITES = "spry_writes"
_LASTING = "spry_lasting"
_CONNECTIONS = 24
"""A thread uses one at a time, and waits for it. Four processes fit into the 100 that PostgreSQL takes by default."""


class Database:
    """Transactions on one engine; shared by all threads of a process."""

    def __init__(self, url: str, folder: Path) -> None:
        """`url` of "" keeps an SQLite file in the folder."""
        self.url = url or f"sqlite:///{database_file(folder)}"
        self.is_sqlite = self.url.startswith("sqlite")
        self._engine = create_engine(self.url, pool_size=_CONNECTIONS, max_overflow=0, pool_pre_ping=not self.is_sqlite)
        self._writer = threading.Lock()  # SQLite has one writer: threads wait here rather than in its polling
        if self.is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        try:
            self._create(folder)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self) -> Generator[Connection, None, None]:
        """Open a consistent view; writes nothing."""
        with self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self, *, lasting: bool = True) -> Generator[Connection, None, None]:
        """Open a transaction: all or nothing; committed, and on disk, when the block ends.

        If not `lasting`, the change is visible at once, but no disk is waited for: a power cut may undo it.
        """
        if not self.is_sqlite:
            with self._engine.begin() as connection:
                if not lasting:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit TO OFF")
                yield connection
            return
        options = {_WRITES: True, _LASTING: lasting}
        with self._writer, self._engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def now(self, connection: Connection, own: float) -> float:
        """Return a time that all workers share: PostgreSQL's own. With SQLite it is `own`, on their one machine."""
        if self.is_sqlite:
            return own
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())

    def schema(self) -> int:
        """Tell which version of the tables the database has; raises where no answer can be had."""
        with self.read() as connection:
            return _schema(connection)

    def alone(self, connection: Connection) -> None:
        """Let one server after the other make tables, until its transaction ends."""
        if not self.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(_WRITES))))

    def damage(self, connection: Connection) -> str | None:
        """Ask SQLite what is wrong with its file; PostgreSQL looks after its own."""
        if not self.is_sqlite:
            return None
        told = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        return None if told == "ok" else str(told)

    def close(self) -> None:
        self._engine.dispose()

    def _create(self, folder: Path) -> None:
        with (folder / ".schema.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may start at once
            try:
                with self.write() as connection:
                    self.alone(connection)  # servers on several machines have no folder to lock
                    about.create(connection, checkfirst=True)
                    known = _schema(connection)
                    if not known:
                        _refuse_orphans(folder)
                    if known < SCHEMA:
                        schema.create_all(connection)
                        _grow(connection)
                        connection.execute(delete(about).where(about.c.key == "schema"))
                        connection.execute(insert(about).values(key="schema", value=str(SCHEMA)))
            except OperationalError as error:
                raise ServerConfigError(
                    f"the database does not answer: {error.orig}; check SPRY_DATABASE_URL, or the data folder"
                ) from None
        if known > SCHEMA:
            raise ServerConfigError(f"the database has schema {known}, this server knows {SCHEMA}: upgrade spry")


def _schema(connection: Connection) -> int:
    return int(connection.scalar(select(about.c.value).where(about.c.key == "schema")) or 0)


def _refuse_orphans(folder: Path) -> None:
    """Refuse a new database beside files of another one: a fresh start would lose all that they belonged to."""
    for kind in ("blobs", "bundles"):
        if any(path.is_file() and not path.name.startswith(".") for path in (folder / kind).rglob("*")):
            raise ServerConfigError(
                f"{folder / kind} holds files, but the database is empty or gone: restore a backup with `spry restore`"
                ", correct SPRY_DATABASE_URL, or name a new data folder with --data"
            )


def _grow(connection: Connection) -> None:
    """Give a database of an earlier version the columns and indexes that came since; it loses nothing.

    What a newer version adds is a column with a default of the server's or without a value, or an index of a new name.
    """
    there = inspect(connection)
    for table in schema.sorted_tables:
        columns = {column["name"] for column in there.get_columns(table.name)}
        for column in table.columns:
            if column.name not in columns:
                added = CreateColumn(column).compile(connection)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {added}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def database_file(folder: Path) -> Path:
    """SQLite's, in a data folder."""
    return folder / "spry.sqlite"


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # BEGIN is ours
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
            connection.execute(f"PRAGMA {pragma}").close()
    except BaseException:  # of a full disk, for one; nobody else closes a connection that never came to be
        connection.close()
        raise


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get(_WRITES):
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if options[_LASTING] else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")

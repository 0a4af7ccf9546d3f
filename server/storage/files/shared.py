"""A home for files that several servers share, where they have no folder in common: PostgreSQL, or what speaks S3.

A file goes by its path below the data folder. What a server has once read or written it keeps there too, and reads from
there again: files are named by their content's hash, so a copy is never old.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import IO, Any, NamedTuple, Protocol

from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, String, Table, delete, func, insert, select

from edge_client.errors import RuntimeMissing, SpryError
from server.errors import ServerConfigError
from server.storage.schema.database import Database

POSTGRESQL, S3 = "postgresql", "s3://"
_PIECE = 1 << 20
_S3_TRIES, _S3_SECONDS = 3, 20
_NO_BUCKET = "NoSuchBucket"
_FURTHER_LINES = re.compile(r"\s*\n.*", re.DOTALL)


class StoreAway(SpryError, OSError):
    """The home of files does not answer: what passes without anybody steering jobs."""


class StoredFile(NamedTuple):
    """The size and age of a kept file."""

    bytes: int
    changed: float
    """Seconds since 1970."""


class BlobStore(Protocol):
    """Keeps files by a key, for all servers; a file that is kept is whole, and outlives a power cut."""

    name: str
    """The name in the settings."""

    def put(self, key: str, source: IO[bytes]) -> None:
        """Keep all of a file's content, in place of what the key named."""
        ...

    def fetch(self, key: str, target: IO[bytes]) -> bool:
        """Write what a key names to a file, piece by piece; False where it names nothing."""
        ...

    def has(self, key: str) -> bool:
        """Tell whether a key names something."""
        ...

    def delete(self, key: str) -> None:
        """Forget what a key names, if anything."""
        ...

    def below(self, folder: str) -> dict[str, StoredFile]:
        """List what is kept below a folder, by key."""
        ...


def open_store(name: str, database: Database) -> BlobStore | None:
    """Open the home that the settings name; None where that is the data folder."""
    if not name:
        return None
    if name == POSTGRESQL:
        return DatabaseBlobs(database)
    return S3Blobs(name)


# --- PostgreSQL ------------------------------------------------------------------------------------------------------

_own = MetaData()
pieces = Table(
    "file_pieces", _own,
    Column("key", String(300), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("changed", Float, nullable=False),
    Column("data", LargeBinary, nullable=False),
)  # fmt: skip


class DatabaseBlobs:
    """Keep files in PostgreSQL, in pieces of a mebibyte: for fleets whose bundles are small."""

    name = POSTGRESQL

    def __init__(self, database: Database) -> None:
        if database.is_sqlite:
            raise ServerConfigError(
                "SPRY_BLOB_STORE=postgresql needs SPRY_DATABASE_URL=postgresql://…: several servers share no SQLite"
            )
        self._database = database
        with database.write() as connection:
            database.alone(connection)
            _own.create_all(connection)

    def put(self, key: str, source: IO[bytes]) -> None:
        source.seek(0)
        with self._database.write() as connection:
            # One after the other, where servers keep the same file at the same moment.
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(key))))
            connection.execute(delete(pieces).where(pieces.c.key == key))
            now = self._database.now(connection, 0.0)
            for number, data in enumerate(_pieces_of(source)):
                connection.execute(insert(pieces).values(key=key, number=number, changed=now, data=data))

    def fetch(self, key: str, target: IO[bytes]) -> bool:
        found = False
        with self._database.read() as connection:
            query = select(pieces.c.data).where(pieces.c.key == key).order_by(pieces.c.number)
            for data in connection.execution_options(yield_per=1).execute(query).scalars():
                target.write(data)
                found = True
        return found

    def has(self, key: str) -> bool:
        with self._database.read() as connection:
            return connection.scalar(select(pieces.c.number).where(pieces.c.key == key).limit(1)) is not None

    def delete(self, key: str) -> None:
        with self._database.write() as connection:
            connection.execute(delete(pieces).where(pieces.c.key == key))

    def below(self, folder: str) -> dict[str, StoredFile]:
        sizes = func.sum(func.length(pieces.c.data)), func.max(pieces.c.changed)
        query = select(pieces.c.key, *sizes).where(pieces.c.key.startswith(f"{folder}/", autoescape=True))
        with self._database.read() as connection:
            rows = connection.execute(query.group_by(pieces.c.key)).all()
        return {key: StoredFile(int(size), float(changed)) for key, size, changed in rows}


def _pieces_of(source: IO[bytes]) -> Iterator[bytes]:
    """Read a file piece by piece; an empty one has one empty piece."""
    piece = source.read(_PIECE)
    yield piece
    while piece := source.read(_PIECE):
        yield piece


# --- S3 --------------------------------------------------------------------------------------------------------------


class S3Blobs:
    """Keep files in a bucket of what speaks S3, by way of `obstore`; its `AWS_*` variables say how to get there."""

    def __init__(self, url: str, setting: str = "SPRY_BLOB_STORE") -> None:
        self.name = url
        try:
            self._obstore: Any = import_module("obstore")
        except ModuleNotFoundError as error:
            raise RuntimeMissing(f"{setting}={url}", "s3", f"{error.name} is not installed") from None
        retries = {"max_retries": _S3_TRIES, "retry_timeout": timedelta(seconds=_S3_SECONDS)}
        try:
            self._bucket: Any = self._obstore.store.from_url(url, retry_config=retries)
            self.below("nothing")  # whether it is there, and lets this server in
        except (StoreAway, self._obstore.exceptions.BaseError) as error:
            raise ServerConfigError(f"{setting}={url} cannot be used: {_line(error)}") from None

    def put(self, key: str, source: IO[bytes]) -> None:
        source.seek(0)
        with self._asking():
            self._obstore.put(self._bucket, key, source)

    def fetch(self, key: str, target: IO[bytes]) -> bool:
        with self._asking():
            try:
                for piece in self._obstore.get(self._bucket, key).stream(min_chunk_size=_PIECE):
                    target.write(piece)
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise
                return False
        return True

    def has(self, key: str) -> bool:
        with self._asking():
            try:
                self._obstore.head(self._bucket, key)
            except FileNotFoundError:
                return False
        return True

    def delete(self, key: str) -> None:
        with self._asking(), suppress(FileNotFoundError):
            self._obstore.delete(self._bucket, key)

    def below(self, folder: str) -> dict[str, StoredFile]:
        with self._asking():
            listed = [one for part in self._obstore.list(self._bucket, folder) for one in part]
        return {one["path"]: StoredFile(int(one["size"]), one["last_modified"].timestamp()) for one in listed}

    @contextmanager
    def _asking(self) -> Generator[None]:
        try:
            yield
        except (FileNotFoundError, self._obstore.exceptions.BaseError) as error:
            raise StoreAway(f"the files at {self.name} are out of reach: {_line(error)}") from None


def _line(error: Exception) -> str:
    """Take an error's first line: object stores answer in pages of XML."""
    return _FURTHER_LINES.sub("", str(error))[:300]

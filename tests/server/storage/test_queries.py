"""Queries stand in the storage room alone; whole databases are copied by `server.ops.backup`, without any."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import server

ROOT = Path(server.__file__).parent
QUERIES = {"select", "insert", "update", "delete", "func", "bindparam"}


def queries(source: str) -> Iterator[str]:
    """Return what a module needs for queries of its own: parts of statements, and tables."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "sqlalchemy":
                yield from (name.name for name in names if name.name in QUERIES)
            case ast.ImportFrom(module="server.storage.schema.tables", names=names):
                yield from (name.name for name in names if name.name != "SCHEMA")
            case ast.ImportFrom(module="server.storage.schema", names=names):
                yield from (name.name for name in names if name.name == "tables")
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in ("sqlalchemy", "server.storage.schema.tables"))
            case _:
                pass


def test_queries_stand_in_storage_alone():
    elsewhere = [path for path in sorted(ROOT.rglob("*.py")) if ROOT / "storage" not in path.parents]
    found = {str(path.relative_to(ROOT)): list(queries(path.read_text())) for path in elsewhere}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    "source",
    [
        "from sqlalchemy import Connection, select",
        "def lazy():\n    from sqlalchemy import update",
        "from sqlalchemy.dialects.sqlite import insert",
        "import sqlalchemy as sa",
        "from server.storage.schema.tables import jobs",
        "from server.storage.schema import rows, tables",
        "import server.storage.schema.tables",
    ],
)
def test_the_scan_sees_every_form_of_import(source):
    assert list(queries(source))


def test_the_scan_lets_the_rest_pass():
    source = (
        "from sqlalchemy import Connection, text\nfrom server.storage.schema.tables import SCHEMA\nimport sqlite3\n"
    )
    assert not list(queries(source))

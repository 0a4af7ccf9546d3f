"""`spry backup` and `spry restore`: a server's data as one file, taken while the server runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge_client.format import size
from server.cli.common import JsonOption, show_json, transfer
from server.ops.archive import DUMP, unpack
from server.ops.backup import PG_DUMP, back_up, describe
from server.settings import read_settings


def backup(
    out: Annotated[Path, typer.Option(help="The archive to write, a tar file.")],
    data: Annotated[Path | None, typer.Option(help="The data folder; $SPRY_DATA_DIR, or spry-data.")] = None,
    dump: Annotated[
        str,
        typer.Option(
            help="With PostgreSQL: a command that writes the database to standard output; it gets --snapshot=ID."
        ),
    ] = PG_DUMP,
    as_json: JsonOption = False,
) -> None:
    """Copy a server's data to a file, even while the server runs: database, bundles, weights, administrator's token.

    Example: spry backup --data spry-data --out backup.tar
    """
    settings = read_settings() if data is None else read_settings(data_dir=data)
    with transfer(f"writing {out.name}") as advance:
        index = back_up(settings, out, advance, dump=dump)
    if as_json:
        show_json({"out": str(out)} | describe(index))
        return
    typer.echo(f"{out}: {size(index.bytes)} in {len(index.files)} files; keep it where others cannot read it")
    typer.echo(f"restore it with: spry restore {out} --data NEW-FOLDER")


def restore(
    archive: Annotated[Path, typer.Argument(help="A file of `spry backup`.")],
    data: Annotated[Path, typer.Option(help="The new data folder; it must not exist.")],
    as_json: JsonOption = False,
) -> None:
    """Make a data folder from a backup; every file is compared with its hash.

    Example: spry restore backup.tar --data restored
    """
    with transfer(f"reading {archive.name}") as advance:
        index = unpack(archive, data, advance)
    if as_json:
        show_json({"data": str(data)} | describe(index))
        return
    typer.echo(f"{data}: {size(index.bytes)} in {len(index.files)} files, all as they were backed up")
    if index.database == "postgresql":
        typer.echo(f"the database: createdb NAME && pg_restore --no-owner --dbname=NAME {data / DUMP}")
        typer.echo(
            "then start the server with SPRY_DATABASE_URL=postgresql://…/NAME and SPRY_DATA_DIR set to the folder"
        )
    else:
        typer.echo(f"start it with: spry serve --data {data}")

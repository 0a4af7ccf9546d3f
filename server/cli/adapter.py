"""`spry adapter`: what a job has learned, as a PEFT adapter."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Annotated

import typer

from server.cli.common import CaOption, NameArgument, ServerOption, TokenOption, connect
from server.cli.connection import AdminError, Administrator, part

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def group() -> None:
    """Adapters: what a job has learned."""  # an app of one command would take `download` for its argument


@app.command()
def download(
    job: NameArgument,
    out: Annotated[Path, typer.Option(help="The adapter's folder.")],
    version: Annotated[int | None, typer.Option(help="An earlier version; the newest when left out.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the adapter at --out.")] = False,
    server: ServerOption = None,
    admin_token: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Write a folder that `PeftModel.from_pretrained` loads.

    Example: spry adapter download news --out adapter/
    """
    if out.exists() and not out.is_dir():
        raise AdminError(f"{out} is not a folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise AdminError(f"{out} exists; choose another --out or give --overwrite")
    with connect(server, admin_token, ca) as administrator:
        save_adapter(administrator, job, out, version)
    typer.echo(f"{out}: load it with PeftModel.from_pretrained(base, {str(out)!r}), or `spry merge` it")


def save_adapter(administrator: Administrator, job: str, out: Path, version: int | None = None) -> None:
    """Each file appears whole or not at all."""
    parameters = {} if version is None else {"version": version}
    content = administrator.bytes(f"/v1/jobs/{part(job)}/adapter", **parameters)
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise AdminError("the server sent no adapter; is --server right?")
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            target = out / Path(entry.filename).name
            partial = target.with_name(f".{target.name}.partial")
            partial.write_bytes(archive.read(entry))
            partial.replace(target)

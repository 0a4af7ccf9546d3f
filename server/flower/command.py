"""`spry flower new`: a Flower app that trains a bundle."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from server.errors import FlowerError

APPS = "client_app.py", "server_app.py"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def flower() -> None:
    """Write an app that trains a bundle over Flower."""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The app's new folder; its name is the app's.")],
) -> None:
    """Write a Flower app: a server, a node, and a pyproject.toml with their settings.

    Example: spry flower new fleet
    """
    if not _NAME.fullmatch(folder.name):
        raise FlowerError(f"an app's name has small letters, digits and -, up to 63 of them, got {folder.name!r}")
    if folder.exists():
        raise FlowerError(f"{folder} exists; choose another name, or remove it")
    template = files("server.flower.template")
    making = folder.with_name(f".{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for name in APPS:
        (making / name).write_text(template.joinpath(name).read_text())
    whole = template.joinpath("project.toml").read_text()
    (making / "pyproject.toml").write_text(whole.format(name=folder.name, folder=folder.resolve().as_posix()))
    making.rename(folder)
    typer.echo(f"written to {folder}. Next, in an environment with spry-edge[onnx,flower]:")
    typer.echo(f"  put a bundle in {folder}/bundle and a node's rows in {folder}/rows/0.jsonl, 1.jsonl, or name others")
    typer.echo(f"  flwr run {folder} --stream")

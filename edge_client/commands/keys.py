"""`spry keys`: the key of who publishes bundles, and its signatures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from edge_client import keys
from edge_client.bundle import signature
from edge_client.commands.options.groups import command_group
from edge_client.errors import BundleError, SpryError

app = command_group("Manage keys that sign bundles, and sign bundles.")

KeyArgument = Annotated[Path, typer.Argument(help="The file of the secret key.")]


@app.command()
def make(key: KeyArgument) -> None:
    """Make a key: KEY holds the secret key, KEY.pub the public key that devices trust.

    Example: spry keys make publisher.key
    """
    public = write_key(key)
    typer.echo(public)


def write_key(path: Path) -> str:
    """Write a new key and its public half into two files; gives the public one."""
    secret = keys.make()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SpryError(f"{path} exists, and a key that is overwritten is lost; give another name") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{keys.SECRET}{secret}\n")
    public = keys.public_of(secret)
    path.with_name(path.name + ".pub").write_text(public + "\n")
    return public


@app.command()
def show(key: KeyArgument) -> None:
    """Print the public key of a secret one.

    Example: spry keys show publisher.key
    """
    typer.echo(keys.public_of(keys.read_secret(key)))


@app.command()
def sign(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    key: Annotated[Path, typer.Option(help="The file of the secret key.")],
) -> None:
    """Sign a bundle, so that devices that trust the key take it.

    Example: spry keys sign bundle/ --key publisher.key
    """
    if not bundle.is_dir():
        raise BundleError(f"{bundle} is no folder: sign the folder that `spry export` wrote")
    public = signature.sign(bundle, keys.read_secret(key))
    typer.echo(f"{bundle} is signed by {public}")

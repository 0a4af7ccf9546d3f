"""`spry bundle`: bundles where devices can fetch them from."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import httpx
import typer

from edge_client.bundle.folder import Bundle, check_file, sha256
from edge_client.bundle.manifest import FILE_NAME
from edge_client.bundle.signature import SIGNATURES
from edge_client.commands.options.groups import command_group
from edge_client.errors import BundleError, SpryError
from edge_client.store.files import write
from edge_client.wire.addresses import checked_mirror

app = command_group("Publish bundles on mirrors for devices.")
_SECONDS = 60.0


@app.callback()
def _bundle() -> None:
    """Publish bundles on mirrors for devices."""


@app.command()
def publish(
    bundle: Annotated[Path, typer.Argument(help="A bundle's folder.")],
    place: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER_OR_URL", help="A folder that a web server shows, or an address that takes PUT (WebDAV, S3)."
        ),
    ],
) -> None:
    """Write a bundle's files for a mirror, into a folder that is named by the sha256 of its manifest.

    The server names the mirror to devices by SPRY_MIRRORS, or a job by `mirrors`.

    Example: spry bundle publish bundle/ /var/www/bundles
    """
    opened = Bundle.open(bundle)
    files = [FILE_NAME, *(file.path for file in opened.manifest.files)]
    if (opened.folder / SIGNATURES).is_file():
        files.append(SIGNATURES)
    name = sha256(opened.folder / FILE_NAME)
    if place.startswith(("http://", "https://")):
        there = f"{checked_mirror(place)}/{name}"
        _send(opened.folder, files, there)
    else:
        there = str(_copy(opened, files, Path(place) / name))
    typer.echo(there)


def _copy(bundle: Bundle, files: list[str], there: Path) -> Path:
    """Copy it as a whole: a device that asks meanwhile finds all of it or nothing."""
    if there.exists() and _is_whole(bundle, there):
        if SIGNATURES in files:
            write(there / SIGNATURES, (bundle.folder / SIGNATURES).read_bytes())
        return there
    there.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".publishing-", dir=there.parent))
    try:
        for path in files:
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / path, partial / path)
        for folder in [partial, *(one for one in partial.rglob("*") if one.is_dir())]:
            folder.chmod(0o755)  # a web server has a user of its own
        if there.exists():
            shutil.rmtree(there)
        partial.rename(there)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return there


def _is_whole(bundle: Bundle, there: Path) -> bool:
    try:
        for file in bundle.manifest.files:
            check_file(there, file)
    except BundleError:
        return False
    return (there / FILE_NAME).is_file() and sha256(there / FILE_NAME) == sha256(bundle.folder / FILE_NAME)


def _send(folder: Path, files: list[str], there: str) -> None:
    """Send the manifest last: where it is, all is. A password for the place is taken from ~/.netrc."""
    with httpx.Client(timeout=_SECONDS) as client:
        for path in [*files[1:], files[0]]:
            try:
                with (folder / path).open("rb") as content:
                    answer = client.put(f"{there}/{quote(path)}", content=content)
            except httpx.HTTPError as error:
                raise SpryError(f"{there} does not take {path} ({error}); check the address") from None
            if not answer.is_success:
                told = f"{answer.status_code} {answer.reason_phrase}"
                raise SpryError(f"{there} does not take {path}: {told}; name a place that takes PUT, or a folder")

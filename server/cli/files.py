"""The files that a server makes of a job's weights."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME, Manifest
from edge_client.store.files import write
from server.cli.connection import AdminError, Administrator, part

_ABOUT = "spry.json"


class Download(NamedTuple):
    """A downloaded adapter: its files by name, and of which job and version they are."""

    files: Mapping[str, bytes]
    version: int
    bundle: str

    @property
    def trained(self) -> bool:
        return self.version > 0

    def write(self, out: Path) -> None:
        """Write each file, whole or not at all."""
        out.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write(out / name, content)

    def manifest(self, administrator: Administrator) -> Manifest:
        """Fetch the manifest of the job's bundle."""
        return manifests.parse(administrator.bytes(f"/v1/bundles/{self.bundle}/{FILE_NAME}"))


def take(administrator: Administrator, job: str, form: str, version: int | None = None) -> Download:
    """Download a version of an adapter, the newest when none is named."""
    parameters: dict[str, Any] = {"format": form} | ({} if version is None else {"version": version})
    content = administrator.bytes(f"/v1/jobs/{part(job)}/adapter", **parameters)
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise AdminError("the server sent no adapter; is --server right?")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {Path(entry.filename).name: archive.read(entry) for entry in archive.infolist()}
    about = json.loads(files.get(_ABOUT, b"{}"))
    if not {"version", "bundle"} <= about.keys():
        raise AdminError("the server sent no adapter; is --server right?")
    return Download(files, about["version"], about["bundle"])

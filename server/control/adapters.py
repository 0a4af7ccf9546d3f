"""A job's weights as a .zip of files in one of the formats."""

from __future__ import annotations

import io
import zipfile
from functools import lru_cache
from pathlib import Path

from safetensors.numpy import load_file

from edge_client.bundle import manifest as manifests
from edge_client.bundle.adapters import folded
from edge_client.bundle.folder import Bundle
from server.errors import Refusal
from server.formats.learned import Learned, Version
from server.formats.registry import FORMATS, NAMES, WITH_BASE, offered
from server.jobs.completion import check_adapter
from server.jobs.job import Job
from server.storage.store import Store

_REMEMBERED = 1000
"""Bundles whose formats are known: what a bundle holds never changes."""
_TIME = (1980, 1, 1, 0, 0, 0)


def formats_of(store: Store, job: Job) -> list[str]:
    """List the formats in which this server can hand out what a job learns."""
    return list(_formats(store.bundles.open(job.bundle).folder))


@lru_cache(maxsize=_REMEMBERED)
def _formats(folder: Path) -> tuple[str, ...]:
    return tuple(offered(Bundle(folder, manifests.read(folder / manifests.FILE_NAME))))


def adapter_archive(store: Store, job: Job, version: int, form: str = "peft") -> bytes:
    """Pack a .zip with the same bytes for the same version, and with `spry.json`, which describes it."""
    if form in WITH_BASE:
        raise Refusal(
            409, "invalid",
            "a server has no base model to merge with: merge where the base is, by `spry adapter download "
            f"{job.name} --format {form} --model BASE --out merged/`",
        )  # fmt: skip
    if form not in FORMATS:
        raise Refusal(422, "invalid", f"format must be one of {', '.join(NAMES)}, got {form!r}")
    bundle = store.bundles.open(job.bundle)
    check_adapter(bundle.manifest)
    initial = load_file(bundle.folder / bundle.manifest.adapter.file)
    tensors = folded(initial | store.models.load(job, version).result)
    learned = Learned(Version(job.name, version, job.bundle), bundle, tensors)
    files = {**FORMATS[form](learned), "spry.json": learned.described()}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for path, content in files.items():
            file.writestr(zipfile.ZipInfo(path, _TIME), content)
    return archive.getvalue()

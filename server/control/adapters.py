"""A job's weights as a PEFT adapter."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import PurePosixPath

from safetensors.numpy import load_file, save

from edge_client.bundle.adapters import folded
from server.jobs.job import Job
from server.storage.store import Store

_TIME = (1980, 1, 1, 0, 0, 0)


def adapter_archive(store: Store, job: Job, version: int) -> bytes:
    """A .zip with the same bytes for the same version; what PEFT wants beside the weights comes from the bundle."""
    bundle = store.bundles.open(job.bundle)
    initial = load_file(bundle.folder / bundle.manifest.adapter.file)
    tensors = folded(initial | store.models.load(job, version).result)
    config = json.dumps(bundle.manifest.adapter.config, indent=2, sort_keys=True)
    name = PurePosixPath(bundle.manifest.adapter.file).name
    files = {
        name: save(dict(sorted(tensors.items())), {"format": "pt"}),
        "adapter_config.json": config.encode() + b"\n",
        "spry.json": json.dumps({"job": job.name, "version": version, "bundle": job.bundle}, indent=2).encode() + b"\n",
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for path, content in files.items():
            file.writestr(zipfile.ZipInfo(path, _TIME), content)
    return archive.getvalue()

"""Measured memory of programs, remembered in the cache.

Two measurements of one program differ by some pages, so that a repeated export would write other figures; the cache
keeps the first ones.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from edge_client.bundle.manifest import Manifest
from edge_client.runtimes.measure import Memory, measure_programs

_FILE = "memory.json"


def memory_of(folder: Path, manifest: Manifest, runtime: str, cache: Path) -> dict[str, Memory]:
    """Measure the memory of each of a runtime's programs, by name."""
    kept = cache / _key(manifest, runtime) / _FILE
    try:
        by_program = msgspec.json.decode(kept.read_bytes(), type=dict[str, Memory])
        os.utime(kept.parent)
    except (OSError, msgspec.MsgspecError):
        by_program = measure_programs(folder, runtime)
        _keep(kept, by_program)
    return by_program


def _keep(path: Path, memory: dict[str, Memory]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(memory))
    Path(partial).replace(path)


def _key(manifest: Manifest, runtime: str) -> str:
    """Return a hash of the runtime's programs and of every file of the bundle."""
    digest = hashlib.sha256(msgspec.json.encode(manifest.runtimes[runtime], order="deterministic"))
    digest.update(msgspec.json.encode(manifest.files))
    return digest.hexdigest()

"""Record trials of a runtime on a bundle: once for each bundle and version of the runtime's library."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from edge_client.bundle.manifest import Manifest
from edge_client.events import silent
from edge_client.runtimes import trials
from edge_client.runtimes.runtime import RUNTIMES, Runtime

from .files import read_json, write

TRIED = "tried.json"
"""The file beside the bundle's manifest of the libraries that gave right results, by runtime."""
REFUSED = "refused.json"
"""The file in the store of the reports on libraries that gave wrong results, by bundle and library.

Such a bundle is deleted as no job's, and would be downloaded again whenever a service starts the client again.
"""


def try_once(folder: Path, manifest: Manifest, name: str, runtime: Runtime, memory: int | None = None) -> None:
    """Refuse a runtime that gives wrong results for the bundle in `folder`, in as much memory as there is."""
    spec = manifest.runtimes[name]
    if not spec.trials:
        return
    known = read_json(folder / TRIED, dict[str, str], silent) or {}
    library = RUNTIMES[name].used.mark
    if known.get(name) == library:
        return
    if not trials.check(runtime, name, spec, memory):
        return  # the others may be wanted when there is more
    with suppress(OSError):  # where nothing can be written it is tried again
        write(folder / TRIED, msgspec.json.encode(known | {name: library}))


def refused(store: Path, bundle: str, name: str) -> str:
    """Say why a runtime's library was refused on this bundle; empty where it was not."""
    return _refusals(store).get(_of(bundle, name), "")


def refuse(store: Path, bundle: str, name: str, why: str) -> None:
    with suppress(OSError):  # where nothing can be written the bundle is downloaded again
        write(store / REFUSED, msgspec.json.encode(_refusals(store) | {_of(bundle, name): why}))


def _refusals(store: Path) -> dict[str, str]:
    return read_json(store / REFUSED, dict[str, str], silent) or {}


def _of(bundle: str, name: str) -> str:
    return f"{bundle} {RUNTIMES[name].used.mark}"

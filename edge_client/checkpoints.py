"""Where a model of Hugging Face lies: in a folder, inside an installed Python package, or on the hub."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from edge_client.errors import SpryError

PACKAGE_PREFIX = "package:"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_HUB = "https://huggingface.co"
_PATIENCE = 5.0
"""Seconds for the hub to answer at all; its own library asks for a minute and a half before it gives up."""


class NoCheckpoint(SpryError):
    """What was named is no model."""


def local_folder(source: str) -> Path | None:
    """The folder that a source names; None for a name on the hub."""
    if source.startswith(PACKAGE_PREFIX):
        return _package_folder(source.removeprefix(PACKAGE_PREFIX))
    path = Path(source)
    if path.is_dir():
        return path
    beside = path.parent != Path() and path.parent.is_dir()
    if path.exists() or beside or source.startswith((".", "~")) or not _HUB_NAME.fullmatch(source):
        raise NoCheckpoint(f"{source} is not a folder; give a folder with a Hugging Face model or a hub name")
    return None


def _package_folder(name: str) -> Path:
    """A model that an installed Python package carries."""
    spec = find_spec(name)
    roots = [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []
    for root in roots:
        for config in sorted(root.rglob("config.json")):
            if "model_type" in json.loads(config.read_text()):
                return config.parent
    reason = "it holds no config.json of a model" if roots else "no such package is installed"
    raise NoCheckpoint(f"the package {name} gives no model: {reason}; install one that has it, or give a folder")


def require_hub(name: str) -> None:
    """Say at once that a name cannot be looked up, unless the hub's library has it from before."""
    if _kept(name) or os.environ.get("HF_HUB_OFFLINE"):
        return
    if silent := silent_hub():
        raise NoCheckpoint(
            f"{name} is no folder here, and the hub {silent} cannot be reached; "
            "give a folder with config.json and model.safetensors, or package:NAME"
        )


def silent_hub() -> str:
    """The hub that does not answer, and why; empty where it does."""
    import httpx

    hub = os.environ.get("HF_ENDPOINT") or _HUB
    try:
        httpx.head(hub, timeout=_PATIENCE)
    except httpx.HTTPError as error:
        where = urlsplit(hub).hostname or hub
        return f"{where} ({str(error) or type(error).__name__})"
    return ""


def _kept(name: str) -> bool:
    root = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or root / "hub")
    return (cache / f"models--{name.replace('/', '--')}" / "snapshots").is_dir()

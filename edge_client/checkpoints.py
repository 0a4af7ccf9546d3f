"""Find a model: in a folder of Hugging Face's, a GGUF file, an installed Python package, or on the hub."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from edge_client.errors import SpryError
from edge_client.gguf.places import gguf_at, gguf_below, gguf_in

PACKAGE_PREFIX = "package:"
_CONFIG = "config.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_HUB = "https://huggingface.co"
_PATIENCE = 5.0
"""Seconds for the hub to answer at all; its own library asks for a minute and a half before it gives up."""


class NoCheckpoint(SpryError):
    """Raised where a name is not a model."""


def local_model(source: str) -> Path | None:
    """Find the folder of Hugging Face's or the GGUF file that a source names; None for a name on the hub."""
    if source.startswith(PACKAGE_PREFIX):
        return _in_package(source.removeprefix(PACKAGE_PREFIX))
    path = Path(source)
    if path.is_dir():
        return path if (path / _CONFIG).is_file() else gguf_in(path) or path
    if path.is_file() and (file := gguf_at(path)):
        return file
    beside = path.parent != Path() and path.parent.is_dir()
    if path.exists() or beside or source.startswith((".", "~")) or not _HUB_NAME.fullmatch(source):
        raise NoCheckpoint(
            f"{source} is no folder and no GGUF file; give a folder with a Hugging Face model, a .gguf, or a hub name"
        )
    return None


def _in_package(name: str) -> Path:
    """Return a model that an installed Python package carries."""
    spec = find_spec(name)
    roots = [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []
    for root in roots:
        for config in sorted(root.rglob(_CONFIG)):
            if "model_type" in json.loads(config.read_text()):
                return config.parent
        if file := gguf_below(root):
            return file
    reason = "it holds no config.json of a model, and no .gguf" if roots else "no such package is installed"
    raise NoCheckpoint(f"the package {name} gives no model: {reason}; install one that has it, or give a folder")


def require_hub(name: str) -> None:
    """Say at once that a name cannot be looked up, unless the hub's library has it from before."""
    if _kept(name) or os.environ.get("HF_HUB_OFFLINE"):
        return
    if silent := silent_hub():
        raise NoCheckpoint(
            f"{name} is no folder here, and the hub {silent} cannot be reached; "
            "give a folder with config.json and model.safetensors, a .gguf, or package:NAME"
        )


def silent_hub() -> str:
    """Return the hub that does not answer, and why; empty where it does."""
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

"""Find GGUF files: in a folder with one of them, in a Python package, and in Ollama's store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_client.gguf.header import SUFFIX, BadGguf, is_gguf

MANIFESTS, BLOBS = "manifests", "blobs"
"""The folders in Ollama's folder of models."""
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_BESIDE = "mmproj"
"""The mark of a file beside the model's own, which reads pictures for it."""
_MODEL, _ADAPTER = (f"application/vnd.ollama.image.{what}" for what in ("model", "adapter"))
_SHOWN = 5


def gguf_in(folder: Path) -> Path | None:
    """Return the one GGUF file that a folder stands for; None where it has none."""
    if (found := _files(folder.glob(f"*{SUFFIX}"))) or (found := list(_of_ollama(folder))):
        return _one(folder, found)
    return None


def gguf_below(folder: Path) -> Path | None:
    """Return the one GGUF file in a folder or anywhere below it."""
    found = _files(folder.rglob(f"*{SUFFIX}"))
    return _one(folder, found) if found else None


def gguf_at(path: Path) -> Path | None:
    """Return the GGUF file that a file stands for: itself, or the one that a manifest of Ollama's names; else None."""
    if path.suffix == SUFFIX or is_gguf(path):
        _refuse_part(path)
        return path
    if MANIFESTS in path.parts:
        return _blob(path)
    return None


def _files(found: Iterator[Path]) -> list[Path]:
    return sorted(path for path in found if path.is_file() and not path.name.startswith(_BESIDE))


def _one(folder: Path, found: Sequence[Path]) -> Path:
    if len(found) > 1 and not _PART.search(found[0].name):
        shown = ", ".join(str(path.relative_to(folder)) for path in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise BadGguf(f"{folder} holds several models: {shown}{more}; give the path of one of them")
    _refuse_part(found[0])
    return _blob(found[0]) if MANIFESTS in found[0].parts else found[0]


def _refuse_part(path: Path) -> None:
    if _PART.search(path.name):
        raise BadGguf(
            f"{path} is a part of a model in several files; join them (llama-gguf-split does), and give the result"
        )


def _of_ollama(folder: Path) -> Iterator[Path]:
    """Manifests below a folder of Ollama's models, or below one of its folders of manifests."""
    root = folder / MANIFESTS if (folder / MANIFESTS).is_dir() and (folder / BLOBS).is_dir() else folder
    if MANIFESTS in root.parts:
        yield from sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))


def _blob(manifest: Path) -> Path:
    """Return the file with the weights that a manifest of Ollama's names."""
    try:
        layers = json.loads(manifest.read_text())["layers"]
        kinds = {layer["mediaType"]: str(layer["digest"]) for layer in layers}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadGguf(f"{manifest} is no manifest of an Ollama model ({error})") from None
    if _ADAPTER in kinds:
        raise BadGguf(f"{manifest} is a model with an adapter of its own; give the model that it was made from")
    at = len(manifest.parts) - 1 - manifest.parts[::-1].index(MANIFESTS)
    blob = Path(*manifest.parts[:at]) / BLOBS / kinds.get(_MODEL, "").replace(":", "-")
    if not blob.is_file():
        raise BadGguf(f"{manifest} names a model that is not in {blob.parent}; `ollama pull` it again")
    return blob

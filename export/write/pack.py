"""The bundle on disk: built in a hidden folder beside its place, moved there whole.

An interrupted export leaves nothing behind; what a killed one left is removed by the next.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FileSpec, Manifest, TurnsSpec
from edge_client.data.turns import turns_of
from export.errors import ExportError
from export.lower.lowering import file_sha256
from export.model.loading import Loaded, template_of

ADAPTER_FOLDER, ADAPTER_WEIGHTS = "adapter", "adapter_model.safetensors"
ADAPTER_FILE = f"{ADAPTER_FOLDER}/{ADAPTER_WEIGHTS}"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "tokenizer_config.json"
CONFIG_FILE = "model_config.json"
"""The base model's own configuration: what it takes to build its shape again."""


@contextmanager
def staging(out: Path) -> Generator[Path, None, None]:
    """Make a folder that becomes `out` when the block ends well; what is there is kept until then."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _clean_up(out)
    folder = out.parent / f".{out.name}.partial-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
        _move(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scratch(out: Path) -> Generator[Path, None, None]:
    """Make a folder beside `out` for files that go with the block; leftovers of a killed export go with the next."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _clean_up(out)
    folder = out.parent / f".{out.name}.scratch-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, out: Path) -> None:
    if not out.exists():
        folder.replace(out)
        return
    replaced = out.parent / f".{out.name}.replaced-{os.getpid()}"
    out.replace(replaced)
    try:
        folder.replace(out)
    except BaseException:
        replaced.replace(out)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _clean_up(out: Path) -> None:
    """Remove what killed exports left, and put a bundle back that one had just moved away."""
    for path in list(out.parent.iterdir()):
        state, _, process = path.name.removeprefix(f".{out.name}.").rpartition("-")
        if not path.name.startswith(f".{out.name}.") or not process.isdigit() or _alive(int(process)):
            continue
        if state == "replaced" and not out.exists():
            path.replace(out)
        elif state in ("partial", "replaced", "scratch"):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def require_space(out: Path, needed: int, what: str = "the bundle") -> None:
    """Refuse before the work, not in the middle of it."""
    place, free = _room(out)
    if free < needed:
        raise ExportError(
            f"{place} has {free / 1e6:.0f} MB free and {what} needs about {needed / 1e6:.0f} MB; "
            "free some space or choose another --out"
        )


def has_space(out: Path, needed: int) -> bool:
    return _room(out)[1] >= needed


def _room(out: Path) -> tuple[Path, int]:
    """Return the place for a bundle, and the bytes that are free there."""
    place = next(parent for parent in out.absolute().parents if parent.exists())
    return place, shutil.disk_usage(place).free


def add_file(folder: Path, path: str, content: bytes) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def link_file(source: Path, target: Path) -> None:
    """Link a file from the cache, without a second copy where the file system allows it."""
    if target.exists():  # tied weights, which two segments share
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)


def add_adapter(folder: Path, config: Mapping[str, object], values: Mapping[str, Tensor]) -> None:
    """Write a folder that `PeftModel.from_pretrained` loads: in a bundle, the untrained adapter."""
    add_file(folder, ADAPTER_WEIGHTS, save(dict(values), metadata={"format": "pt"}))
    text = json.dumps(plain(config), indent=2, sort_keys=True)
    add_file(folder, "adapter_config.json", text.encode() + b"\n")


def plain(value: object) -> object:
    """Keep what JSON can hold of a PEFT configuration, in a fixed order."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)  # type: ignore[type-var]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return getattr(value, "value", value)
    return str(getattr(value, "value", value))


def add_tokenizer(folder: Path, loaded: Loaded) -> str | None:
    """`tokenizer.json`, without the padding and truncation that the client sets itself."""
    if loaded.tokenizer is None:
        return None
    backend = loaded.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    add_file(folder, TOKENIZER_FILE, backend.to_str(pretty=False).encode())
    return TOKENIZER_FILE


def add_template(folder: Path, loaded: Loaded) -> str | None:
    """Write the chat template with its special tokens, where rows of the task may be conversations."""
    if loaded.tokenizer is None or not loaded.task.kind.converses:
        return None
    add_file(folder, TEMPLATE_FILE, template_of(loaded.tokenizer).written())
    return TEMPLATE_FILE


def turns_in(loaded: Loaded) -> TurnsSpec | None:
    """Return a template's turns for readers without Jinja; None where it does more than write words around messages."""
    if loaded.tokenizer is None or not loaded.task.kind.converses:
        return None
    return turns_of(template_of(loaded.tokenizer))


def add_config(folder: Path, loaded: Loaded) -> None:
    add_file(folder, CONFIG_FILE, loaded.model.config.to_json_string(use_diff=True).encode())


def list_files(folder: Path) -> tuple[FileSpec, ...]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != manifests.FILE_NAME)
    return tuple(
        FileSpec(path.relative_to(folder).as_posix(), file_sha256(path), path.stat().st_size) for path in paths
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / manifests.FILE_NAME).write_bytes(manifests.write(manifest))

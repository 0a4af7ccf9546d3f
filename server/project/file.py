"""`spry.toml`: what a project learns and how, in one small file that people edit and commands read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from edge_client.bundle.manifest import DEFAULT_TASK
from server.errors import ProjectError

FILE = "spry.toml"


class DataPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows at hand, by paths from the project's folder."""

    train: str = "data/train.jsonl"
    """The rows that trial devices share out among themselves."""
    held_out: str = "data/held-out.jsonl"
    """The rows that the server measures on; none when empty."""


class ModelPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section of a project's model: what is exported."""

    source: str
    task: str = DEFAULT_TASK
    labels: tuple[str, ...] = ()
    quantize: str = "int8"
    length: int = 64
    batch: int = 8
    targets: tuple[str, ...] = ("onnx",)
    options: tuple[str, ...] = ()
    """More of `spry export`, word by word."""


class JobPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The job's settings."""

    name: str
    rounds: int = 10
    patience: int = 0
    """Rounds without a better held-out accuracy, after which it ends; 0: never."""
    per_round: int = 10
    preset: str = ""
    settings: dict[str, Any] = {}
    """More of `spry job create --set`."""


class ServerPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's address."""

    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: str = ""
    tls_key: str = ""
    plain_http: bool = False
    settings: dict[str, Any] = {}
    """Other settings, by the names of the server's."""


class ProjectFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole of `spry.toml`."""

    data: DataPart = DataPart()
    model: ModelPart
    job: JobPart
    server: ServerPart = ServerPart()


def read(path: Path) -> ProjectFile:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=ProjectFile)
    except FileNotFoundError:
        raise ProjectError(f"{path} does not exist; make a project with `spry new NAME --data FILE`") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProjectError(f"{path} cannot be read: {error}; correct it, or make the project again") from None


def written(file: ProjectFile, why: Mapping[str, str]) -> str:
    """Write a project as TOML; `why` has a comment for a key such as `model.length`."""
    lines = ["# What this project learns. `spry up` reads it again each time: change what you like."]
    for table, part in cast("dict[str, dict[str, Any]]", msgspec.to_builtins(file)).items():
        lines += ["", f"[{table}]"]
        settings = part.pop("settings", None)
        for key, value in part.items():
            comment = why.get(f"{table}.{key}")
            lines.append(f"{key} = {_value(value)}" + (f"  # {comment}" if comment else ""))
        if settings is not None:
            lines += [f"# settings = {{ }}  # {_MORE[table]}"]
    return "\n".join(lines) + "\n"


_MORE = {
    "job": "as `spry job create --set` takes them: { deadline = 300 }",
    "server": "as in docs/server.md: { retry_seconds = 60 }",
}


def _value(value: object) -> str:
    """Texts, numbers, truths and lists of texts are written as JSON writes them."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")

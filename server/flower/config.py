"""The settings of a Flower app: a run's, and what a node has instead.

Flower's configuration is flat: `job.training.batch` in `--run-config` is `batch` of `training` among a job's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from edge_client.bundle.manifest import Manifest
from server.errors import FlowerError
from server.jobs.completion import complete
from server.jobs.presets import PRESETS, merged, preset_for, start_of
from server.jobs.settings import JobSettings

PREFIX = "job."
PRESET = "preset"
Value = bool | float | int | str
Config = Mapping[str, Value]


def settings_for(config: Config, manifest: Manifest) -> JobSettings:
    """Complete the settings that a run's configuration names under `job.`, over the preset that fits the bundle."""
    given = nested({key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)})
    training: Mapping[str, Any] = given.get("training", {})
    preset = str(config.get(PRESET) or preset_for(manifest.adapter.method, training))
    if preset not in PRESETS:
        raise FlowerError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    try:
        settings = JobSettings.model_validate(merged(start_of(manifest, preset), given))
    except ValidationError as error:
        first = error.errors()[0]
        where = PREFIX + ".".join(map(str, first["loc"]))
        raise FlowerError(f"the run's configuration is refused: {where}: {first['msg']}") from None
    return hosted(settings, manifest)


def hosted(settings: JobSettings, manifest: Manifest) -> JobSettings:
    """Complete settings by a bundle, and refuse what a round over Flower does not have."""
    wanted = {
        "training.mode=iteration": settings.training.mode == "iteration",
        "secure_aggregation": settings.secure_aggregation,
        "a privacy budget": settings.is_private,
        "schedule=buffered": settings.is_buffered,
    }
    if missing := [name for name, asked in wanted.items() if asked]:
        raise FlowerError(f"a round over Flower has no {' and no '.join(missing)}: use `spry serve`, or leave it out")
    return complete(settings, manifest)


def nested(flat: Config) -> dict[str, Any]:
    """Nest `{"training.batch": 8}` as `{"training": {"batch": 8}}`."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, name = key.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
            if not isinstance(branch, dict):
                raise FlowerError(f"job.{key} is given, and a value for {parent} itself: leave one of them out")
        branch[name] = value
    return tree


def text_of(config: Config, name: str, node: Config | None = None, default: str | None = None) -> str:
    """Find a setting's text, the node's own first; `{partition-id}` in it stands for the node's number."""
    node = node or {}
    value = node.get(name, config.get(name, default))
    if value is None or value == "":
        if default is not None:
            return default
        raise FlowerError(f"{name} is neither in the node's configuration nor in the run's: name it in one of them")
    try:
        return str(value).format_map(node)
    except (KeyError, IndexError, ValueError):
        raise FlowerError(f"{name} is {value!r}: only names of the node's configuration may be in braces") from None

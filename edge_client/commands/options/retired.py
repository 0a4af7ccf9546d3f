"""Options and settings of earlier versions that are gone, each with what happens instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, cast

from edge_client.errors import SpryError

RETIRED: Mapping[str, str] = {
    "--peft aligned": "use --peft bottleneck, which has the same directions with less noise in a pass",
    "--peft pairs": "use --peft bottleneck, or lora, which devices train with exact gradients",
    "--peft tinylora": "use --peft ia3, or lora with --rank 1, for few numbers in a layer",
    "--dimension": "it belonged to the adapters pairs and tinylora; use --rank with others",
    "--preset aligned": "leave it out: the default fits the bundle",
    "--preset aligned-iteration": "use --mode iteration, and leave the preset out",
    "--preset pairs": "leave it out: the default fits the bundle",
    "--units-apart": "each direction moves all units of a client",
    "training.units_apart": "each direction moves all units of a client",
    "training.prefix_cache": "devices keep the prefix's result if there is memory for it, which changes no number",
    "--zip": "a bundle is its folder; pack that by any program",
    "--verify-directions": "use --verify auto, full or none",
    "--desk-examples": "it is --calibration-examples now",
    "--interval": "spry report judges convergence as the paper does, by intervals of 50 rounds",
    "--preset alike": "leave it out: with few rows, the default lets devices make their own steps, as it did",
}


def refuse(asked: str) -> None:
    """Refuse an option, or an option's value, of earlier versions."""
    if asked in RETIRED:
        raise SpryError(f"{asked} is gone: {RETIRED[asked]}")


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a job that earlier versions had."""
    for name in _dotted(settings):
        refuse(name)


def without_retired(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of the settings of a job that an earlier version made what this one has not."""
    kept = {name: copy(value) for name, value in settings.items()}
    for name in RETIRED.keys() & set(_dotted(settings)):
        folder, _, last = name.rpartition(".")
        (kept[folder] if folder else kept).pop(last)
    return kept


def _dotted(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{key}" for key in cast("dict[str, Any]", value))

"""What earlier versions took and this one does not, each with what happens instead."""

from __future__ import annotations

from collections.abc import Mapping

from edge_client.errors import SpryError

RETIRED: Mapping[str, str] = {
    "--peft aligned": "--peft bottleneck takes the same directions, with less noise in a pass",
    "--peft pairs": "take --peft bottleneck, or lora, which devices learn by true gradients",
    "--peft tinylora": "take --peft ia3, or lora with --rank 1, for few numbers a layer",
    "--dimension": "it was of the adapters pairs and tinylora; --rank makes others larger or smaller",
    "--preset aligned": "leave it out for what fits the bundle",
    "--preset aligned-iteration": "take --mode iteration, and leave the preset out",
    "--preset pairs": "leave it out for what fits the bundle",
    "--preset alike": "leave it out: where there are few rows, the default lets devices walk by themselves as it did",
}


def refuse(asked: str) -> None:
    """Refuse an option, or an option's value, of earlier versions."""
    if asked in RETIRED:
        raise SpryError(f"{asked} is gone: {RETIRED[asked]}")

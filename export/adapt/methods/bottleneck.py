"""Bottleneck: LoRA whose second factor is frozen where the model moves most, so that tangents enter between the two.

The second factor's columns are orthonormal and there is no scale: a step of size s in every number of the first factor
moves a layer's result by about s |x|, as the same step in the second factor of a usual LoRA pair does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapter import Adapter, Targets

if TYPE_CHECKING:
    from peft import PeftConfig


def _config(options: AdapterOptions, targets: Targets, common: dict[str, Any]) -> PeftConfig:
    from peft import LoraConfig

    return LoraConfig(r=options.rank, lora_alpha=options.rank, target_modules=list(targets.names), **common)  # type: ignore[arg-type]


ADAPTER = Adapter(_config, options=("rank",), rank=16, at_bottlenecks=True)

"""LoRA: a product of two thin matrices beside each layer (Hu et al., 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapter import Adapter, Targets

if TYPE_CHECKING:
    from peft import PeftConfig


def _config(options: AdapterOptions, targets: Targets, common: dict[str, Any]) -> PeftConfig:
    from peft import LoraConfig

    return LoraConfig(r=options.rank, lora_alpha=options.alpha, target_modules=list(targets.names), **common)  # type: ignore[arg-type]


ADAPTER = Adapter(_config, options=("rank", "alpha"), rank=4, depth=1 / 2)

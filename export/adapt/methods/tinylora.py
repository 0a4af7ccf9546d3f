"""TinyLoRA: a few numbers between the leading singular vectors of each layer's weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapter import Adapter, Targets

if TYPE_CHECKING:
    from peft import PeftConfig


def _config(options: AdapterOptions, targets: Targets, common: dict[str, Any]) -> PeftConfig:
    from peft import TinyLoraConfig

    return TinyLoraConfig(r=options.rank, u=options.dimension, target_modules=list(targets.names), **common)


ADAPTER = Adapter(_config, options=("rank", "dimension"))

"""IA3: a scale of keys, values and what enters feed-forward layers (Liu et al., 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapter import Adapter, Targets

if TYPE_CHECKING:
    from peft import PeftConfig

    from export.adapt.targets import Projections


def _config(options: AdapterOptions, targets: Targets, common: dict[str, Any]) -> PeftConfig:
    from peft import IA3Config

    return IA3Config(target_modules=list(targets.names), feedforward_modules=list(targets.feedforward), **common)


def _targets(projections: Projections) -> tuple[str, ...]:
    return tuple(dict.fromkeys(projections.key + projections.value + projections.feedforward))


ADAPTER = Adapter(_config, _targets, feedforward=True)

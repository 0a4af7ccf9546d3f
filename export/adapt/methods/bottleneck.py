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

    from export.adapt.between import Between


def _config(options: AdapterOptions, targets: Targets, common: dict[str, Any]) -> PeftConfig:
    from export.adapt.between import unscaled

    return unscaled(options.rank, targets.names, common)


def _between() -> Between:
    from export.adapt.alignment import bases, task_bases
    from export.adapt.between import Between

    return Between(None, "rank", task_bases, bases)


ADAPTER = Adapter(_config, options=("rank",), rank=4, between=_between, at_bottlenecks=True)

"""Aligned: a square of factors between the directions in which the model moves most (`export.adapt.alignment`)."""

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
    from export.adapt.between import Between, square

    return Between(square, "rank", task_bases, bases)


ADAPTER = Adapter(_config, options=("rank",), between=_between)

"""Pairs: a factor of each pair of directions that labelled examples find (`export.adapt.alignment`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapter import Adapter, Targets
from export.errors import ExportError

if TYPE_CHECKING:
    from peft import PeftConfig

    from export.adapt.between import Between


def _config(options: AdapterOptions, targets: Targets, common: dict[str, Any]) -> PeftConfig:
    from export.adapt.between import unscaled

    return unscaled(options.dimension, targets.names, common)


def _between() -> Between:
    from export.adapt.alignment import task_pairs
    from export.adapt.between import Between, DirectionFactors

    return Between(DirectionFactors, "dimension", task_pairs)


def _check(options: AdapterOptions) -> None:
    if not options.examples:
        raise ExportError("--peft pairs finds its directions by labelled examples; give some with --examples FILE")


ADAPTER = Adapter(_config, options=("dimension",), dimension=64, check=_check, between=_between)

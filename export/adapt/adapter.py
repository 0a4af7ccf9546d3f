"""Define adapters: a PEFT configuration, and the layers of a model that it is for.

Each is a module of `export.adapt.methods` and an entry point of the group `spry.adapters`. Here and there heavy
libraries are imported where they are used, so that names, defaults and checks of options cost no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_client import plugins
from edge_client.commands.options.adapter import ALL_BLOCKS, USUAL_RANK, AdapterOptions
from edge_client.commands.options.retired import refuse
from export.errors import ExportError
from export.values import known, positive

if TYPE_CHECKING:
    from peft import PeftConfig

    from export.adapt.targets import Projections


@dataclass(frozen=True)
class Targets:
    """The linear layers that an adapter changes: module names, or last parts of some."""

    names: Sequence[str]
    feedforward: Sequence[str] = ()
    """The layers that end a block, where the adapter asks for them."""


def query_and_value(projections: Projections) -> tuple[str, ...]:
    """Return the usual targets."""
    return tuple(dict.fromkeys(projections.query + projections.value))


@dataclass(frozen=True)
class Adapter:
    """One way to adapt a model: its PEFT configuration and which of the base's own parameters it trains."""

    config: Callable[[AdapterOptions, Targets, dict[str, Any]], PeftConfig]
    """The third are arguments that most configurations take."""
    targets: Callable[[Projections], tuple[str, ...]] = query_and_value
    """Which of the projections that are found in a model, unless others are named."""
    options: tuple[str, ...] = ()
    """The `AdapterOptions` that make one adapter of the kind differ from another."""
    rank: int = USUAL_RANK
    """The rank that it was measured best with."""
    depth: float = ALL_BLOCKS
    """The share of a model's blocks, from its end, that it was measured best in, for what a step costs."""
    feedforward: bool = False
    """True if its configuration tells the layers that end a block from the others."""
    trains: Callable[[str], bool] | None = None
    """Tells which base parameters are trained, for methods that PEFT has no tuner for. The tuner is then a mere
    carrier, a LoRA layer that is stored but switched off, so that `PeftModel.from_pretrained` loads the result."""
    head_alone: bool = False
    """True if nothing but the task layer is trained."""
    at_bottlenecks: bool = False
    """True if the second of a layer's factors is frozen in directions that are found at export, so that forward
    gradients move the first one's output, in place of its weights."""


def carrier(bias: str) -> Callable[[AdapterOptions, Targets, dict[str, Any]], PeftConfig]:
    """Return the configuration of a method that PEFT has no tuner for."""

    def config(options: AdapterOptions, targets: Targets, common: dict[str, Any]) -> PeftConfig:
        from peft import LoraConfig

        return LoraConfig(r=1, target_modules=list(targets.names[:1]), bias=bias, **common)  # type: ignore[arg-type]

    return config


ADAPTERS = plugins.Registry[Adapter](plugins.ADAPTERS, lambda adapter: isinstance(adapter, Adapter))


def check_adapter(options: AdapterOptions) -> None:
    """Refuse what cannot work, each with what was expected and what came."""
    if options.method not in ADAPTERS:
        refuse(f"--peft {options.method}")
    known("adapter", [options.method], ADAPTERS)
    positive("rank", [options.rank])
    if options.from_mean and options.method != "lora":
        raise ExportError(f"--from-mean trains LoRA's layers, got --peft {options.method}: leave one of them out")
    if options.last_blocks is not None and options.last_blocks < 0:
        raise ExportError(f"--last-blocks takes 0 (all) or more, got {options.last_blocks}")
    if not math.isfinite(options.alpha):
        raise ExportError(f"alpha must be a finite number, got {options.alpha}")

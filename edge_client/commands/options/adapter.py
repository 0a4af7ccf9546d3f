"""What a model is adapted with: asked for on the command line, and handed on as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import typer

from edge_client import plugins

from .groups import OptionGroup

USUAL_DIMENSION = 16
"""The trainable numbers per layer of most adapters."""
USUAL_RANK = 1


class Described(Protocol):
    """What is asked of an `export.adapt.adapter.Adapter` before a model is adapted."""

    @property
    def dimension(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def options(self) -> tuple[str, ...]: ...


_ADAPTERS = plugins.Registry[Described](plugins.ADAPTERS, lambda adapter: hasattr(adapter, "dimension"))
"""Listed without importing any of them, so that a command's help costs no torch."""


def own_dimension(method: str) -> int:
    """The trainable numbers per layer that an adapter was measured best with; the usual for one that is not known."""
    return _ADAPTERS[method].dimension if method in _ADAPTERS else USUAL_DIMENSION


def own_rank(method: str) -> int:
    """The rank that an adapter was measured best with; the usual for one that is not known."""
    return _ADAPTERS[method].rank if method in _ADAPTERS else USUAL_RANK


def own_options(method: str) -> tuple[str, ...]:
    """What makes one adapter of a kind differ from another: none where there is nothing to choose."""
    return _ADAPTERS[method].options if method in _ADAPTERS else ()


@dataclass(frozen=True)
class AdapterOptions(OptionGroup):
    """How a model is adapted."""

    title = "Adapter"

    method: Annotated[str, typer.Option("--peft", help=f"The adapter: {', '.join(_ADAPTERS)}.")] = "lora"
    rank: Annotated[int, typer.Option(min=0, help="Rank of LoRA, or of frozen factors; 0: 1, and 4 of bottleneck.")] = 0
    alpha: Annotated[float, typer.Option(help="LoRA's scale.")] = 1.0
    dimension: Annotated[
        int, typer.Option(min=0, help="Trainable numbers per layer of pairs and TinyLoRA; 0: 64 and 16.")
    ] = 0
    targets: Annotated[
        tuple[str, ...],
        typer.Option("--target-modules", help="Layers to adapt, between commas; found in the model when left out."),
    ] = ()
    """Module names or their last parts; empty: the method's default, found in the model."""
    examples: Annotated[str, typer.Option(help="A file of labelled examples at hand, for a better start.")] = ""
    """By them the task layer's features are standardized, and an aligned adapter finds its directions."""
    last_blocks: Annotated[int, typer.Option(min=0, help="Adapt so many of the last blocks; 0: all.")] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", self.dimension or own_dimension(self.method))
        object.__setattr__(self, "rank", self.rank or own_rank(self.method))

    @property
    def told(self) -> str:
        """The method, and its options where it has some."""
        blocks = [f"last {self.last_blocks} blocks"] if self.last_blocks else []
        chosen = [f"{name}={getattr(self, name):g}" for name in own_options(self.method)]
        return " ".join([self.method, *chosen, *self.targets, *blocks])

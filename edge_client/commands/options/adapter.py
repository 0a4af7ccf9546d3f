"""What a model is adapted with: asked for on the command line, and handed on as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from edge_client import plugins
from edge_client.bundle.adapters import own_dimension, own_options

from .groups import OptionGroup

_NAMES = tuple(plugins.added(plugins.ADAPTERS))
"""Found without importing any of them, so that a command's help costs no torch."""


@dataclass(frozen=True)
class AdapterOptions(OptionGroup):
    """How a model is adapted."""

    title = "Adapter"

    method: Annotated[str, typer.Option("--peft", help=f"The adapter: {', '.join(_NAMES)}.")] = "lora"
    rank: Annotated[int, typer.Option(min=1, help="Rank of LoRA, or of TinyLoRA's frozen factors.")] = 1
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

    @property
    def told(self) -> str:
        """The method, and its options where it has some."""
        blocks = [f"last {self.last_blocks} blocks"] if self.last_blocks else []
        chosen = [f"{name}={getattr(self, name):g}" for name in own_options(self.method)]
        return " ".join([self.method, *chosen, *self.targets, *blocks])

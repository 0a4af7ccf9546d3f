"""Define a model's adapter as asked for on the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Protocol

import typer

from edge_client import plugins
from edge_client.tasks.registry import has_head

from .groups import OptionGroup

USUAL_RANK = 1
ALL_BLOCKS = 1.0


class Described(Protocol):
    """The part of `export.adapt.adapter.Adapter` that is read before a model is adapted."""

    @property
    def rank(self) -> int: ...
    @property
    def options(self) -> tuple[str, ...]: ...
    @property
    def depth(self) -> float: ...


_ADAPTERS = plugins.Registry[Described](plugins.ADAPTERS, lambda adapter: hasattr(adapter, "rank"))
"""Listed without importing any of them, so that a command's help costs no torch."""
ADAPTER_NAMES = ", ".join(_ADAPTERS)


def own_rank(method: str) -> int:
    """Return the rank that an adapter was measured best with; the usual for one that is not known."""
    return _ADAPTERS[method].rank if method in _ADAPTERS else USUAL_RANK


def own_options(method: str) -> tuple[str, ...]:
    """List the options in which adapters of a kind differ: none where there is nothing to choose."""
    return _ADAPTERS[method].options if method in _ADAPTERS else ()


def own_depth(method: str) -> float:
    """Return the share of a model's blocks, from its end, that an adapter was measured best in; all if unknown."""
    return _ADAPTERS[method].depth if method in _ADAPTERS else ALL_BLOCKS


def told_blocks(method: str, last_blocks: int | None) -> str:
    """Say how many of the last blocks are adapted, in a word; empty for all."""
    if last_blocks is None and (share := own_depth(method)) < ALL_BLOCKS:
        return f"{share:.0%}"
    return f"{last_blocks}" if last_blocks else ""


@dataclass(frozen=True)
class AdapterOptions(OptionGroup):
    """Options for the adapter of a model."""

    title = "Adapter"

    method: Annotated[str, typer.Option("--peft", help=f"The adapter: {ADAPTER_NAMES}.")] = "lora"
    rank: Annotated[
        int, typer.Option(min=0, help="The rank of LoRA and bottleneck; 0: 4 for LoRA, 16 for bottleneck.")
    ] = 0
    alpha: Annotated[
        float, typer.Option(help="LoRA's alpha, which is divided by the rank; 0: equal to the rank, a scale of 1.")
    ] = 0
    targets: Annotated[
        tuple[str, ...],
        typer.Option("--target-modules", help="Layers to adapt, separated by commas; by default found in the model."),
    ] = ()
    """Module names or their last parts; empty: the method's default, found in the model."""
    examples: Annotated[str, typer.Option(help="A file of labelled calibration examples, for a better start.")] = ""
    """Labelled rows, by which features are standardized and a bottleneck's frozen factor finds its directions."""
    last_blocks: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Adapt this many of the last blocks; 0: all. By default half with LoRA and a head, otherwise all.",
        ),
    ] = None
    """None: the share that the method was measured best in, or wherever the named layers are."""
    from_mean: Annotated[
        bool,
        typer.Option(
            "--from-mean",
            help="Train the first token's output to equal the mean over tokens (sentence encoders); takes a minute.",
        ),
    ] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", self.rank or own_rank(self.method))
        object.__setattr__(self, "alpha", self.alpha or float(self.rank))
        if self.targets and self.last_blocks is None:
            object.__setattr__(self, "last_blocks", 0)

    def of_task(self, task: str) -> AdapterOptions:
        """Fill in what a task decides: without a task layer, in all blocks unless somebody says which."""
        return self if has_head(task) or self.last_blocks is not None else replace(self, last_blocks=0)

    def blocks_of(self, blocks: int) -> int:
        """Return how many of a model's blocks are adapted, from its end; 0: all of them."""
        if self.last_blocks is not None:
            return self.last_blocks
        share = own_depth(self.method)
        return max(1, int(blocks * share)) if share < ALL_BLOCKS else 0

    @property
    def told(self) -> str:
        """The method, and its options where it has some."""
        where = told_blocks(self.method, self.last_blocks)
        blocks = [f"last {where} of the blocks"] if where else []
        chosen = [f"{name}={getattr(self, name):g}" for name in own_options(self.method)]
        return " ".join([self.method, *chosen, *self.targets, *blocks])

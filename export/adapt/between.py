"""Adapters of which one or both of each layer's factors are frozen, in directions that are found at export."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, PeftConfig
from torch import Tensor, nn

from edge_client.bundle.adapters import CORE, FRAME
from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.alignment import Basis
from export.adapt.labelled import Batch
from export.errors import ExportError
from export.model.loading import Loaded


@dataclass(frozen=True)
class Between:
    """What is trained between a layer's two frozen factors, and how these are found."""

    core: Callable[[int], nn.Module] | None
    """None where all of the first factor is trained, and the second frozen."""
    asked: str
    """The option that says of how many directions the factors are."""
    by_examples: Callable[[Loaded, Sequence[str], int, Sequence[Batch]], dict[str, Basis]]
    by_model: Callable[[Loaded, Sequence[str], int, int], dict[str, Basis]] | None = None
    """Without examples at hand, by a seed."""

    def bases(
        self, loaded: Loaded, layers: Sequence[str], options: AdapterOptions, examples: Sequence[Batch], seed: int
    ) -> dict[str, Basis]:
        """Each layer's factors."""
        count = getattr(options, self.asked)
        smallest = min((min(loaded.model.get_parameter(f"{name}.weight").shape) for name in layers), default=0)
        if count > smallest > 0:
            raise ExportError(
                f"{self.asked} {count} is more than the {smallest} features of a target module; "
                f"choose a smaller --{self.asked}"
            )
        if examples:
            return self.by_examples(loaded, layers, count, examples)
        assert self.by_model is not None  # the options refuse a method that needs examples
        return self.by_model(loaded, layers, count, seed)

    def put(self, layer: Any, basis: Basis, adapter: str) -> None:
        """Give a LoRA layer frozen factors, and between or before them what is trained, zero at first."""
        if self.core is None:
            nn.init.zeros_(layer.lora_A[adapter].weight)
            layer.lora_B[adapter] = FrozenFactor(basis.out)
            return
        layer.lora_A[adapter] = FrozenFactor(basis.into.T.contiguous())
        core = self.core(basis.out.shape[1])
        layer.lora_B[adapter] = nn.Sequential(OrderedDict([(CORE, core), (FRAME, FrozenFactor(basis.out))]))


def unscaled(rank: int, layers: Sequence[str], common: dict[str, Any]) -> PeftConfig:
    """LoRA without a scale: what is trained between its factors is folded into one of them at the end."""
    return LoraConfig(r=rank, lora_alpha=rank, target_modules=list(layers), **common)  # type: ignore[arg-type]


def square(directions: int) -> nn.Module:
    """Trained factors of each pair of directions."""
    core = nn.Linear(directions, directions, bias=False)
    nn.init.zeros_(core.weight)
    return core


class DirectionFactors(nn.Module):
    """A trained factor of each direction."""

    def __init__(self, directions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, directions))  # PEFT warns of vectors

    def forward(self, states: Tensor) -> Tensor:
        return states * self.weight


class FrozenFactor(nn.Module):
    """A product with a weight that is not trained, and so not quantized either."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.weight: Tensor

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight)

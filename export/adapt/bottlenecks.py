"""Bottlenecks of an eager model: their frozen factors, what enters the trained ones, and what is added behind these."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from export.adapt.adapted import Adapted


class FrozenFactor(nn.Module):
    """A product with a weight that is not trained, and so not quantized either."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.weight: Tensor

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight)


def freeze_second_factor(layer: Any, directions: Tensor, adapter: str) -> None:
    """Give a LoRA layer a second factor of these columns, [features out, rank], and let the first begin at zero."""
    nn.init.zeros_(layer.lora_A[adapter].weight)
    layer.lora_B[adapter] = FrozenFactor(directions)


@contextmanager
def at_bottlenecks(
    adapted: Adapted, names: Iterable[str], added: Mapping[str, Tensor]
) -> Generator[dict[str, Tensor], None, None]:
    """While the model runs: fills in what enters each of these trained factors, and adds to what leaves some."""
    seen: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def note(_module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
            (seen[name],) = given
            return result + added[name].to(result.dtype) if name in added else result

        return note

    modules = {name: adapted.model.get_submodule(adapted.names[name].removesuffix(".weight")) for name in names}
    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()

"""Bottlenecks of an eager model: what enters the factors before them, and something that is added behind these."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from export.adapt.wrapping import Adapted


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

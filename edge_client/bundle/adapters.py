"""Adapters: how large they are when nobody says, and from what is trained to what PEFT loads.

Most are the same in both, some are trained in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from edge_client import plugins
from edge_client.arrays import Array

CORE, FRAME = "core", "frame"
"""The parts of LoRA's second factor where it is trained in parts: the columns of `frame`, which `core` mixes or, with a
single row, scales. `core` is what is trained."""
CENTRE, SCALE = "centre", "scale"
"""What a task layer's features are moved and multiplied by before its weight sees them."""


USUAL_DIMENSION = 16
"""The trainable numbers per layer of most adapters."""


class Described(Protocol):
    """What simulations and exports need to know of an `export.adapt.adapter.Adapter` before they make one."""

    @property
    def dimension(self) -> int: ...
    @property
    def options(self) -> tuple[str, ...]: ...


_ADAPTERS = plugins.Registry[Described](plugins.ADAPTERS, lambda adapter: hasattr(adapter, "dimension"))


def own_dimension(method: str) -> int:
    """The trainable numbers per layer that an adapter was measured best with; the usual for one that is not known."""
    return _ADAPTERS[method].dimension if method in _ADAPTERS else USUAL_DIMENSION


def own_options(method: str) -> tuple[str, ...]:
    """What makes one adapter of a kind differ from another: none where there is nothing to choose."""
    return _ADAPTERS[method].options if method in _ADAPTERS else ()


def folded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """A PEFT adapter's tensors: factors that are trained in parts as one, and a task layer for features as they are."""
    return _plain_heads(_whole_factors(tensors))


def _plain_heads(tensors: Mapping[str, Array]) -> dict[str, Array]:
    plain = {name: value for name, value in tensors.items() if name.rpartition(".")[2] not in (CENTRE, SCALE)}
    for name, scale in tensors.items():
        owner, _, part = name.rpartition(".")
        if part == SCALE:
            weight, bias = f"{owner}.weight", f"{owner}.bias"
            plain[weight] = np.asarray(tensors[weight] * scale, scale.dtype)
            if bias in tensors:  # or there is no centre
                plain[bias] = np.asarray(tensors[bias] - plain[weight] @ tensors[f"{owner}.{CENTRE}"], scale.dtype)
    return plain


def _whole_factors(tensors: Mapping[str, Array]) -> dict[str, Array]:
    whole: dict[str, Array] = {}
    for name, value in tensors.items():
        owner, _, part = name.removesuffix(".weight").rpartition(".")
        if part == CORE:
            frame = tensors[f"{owner}.{FRAME}.weight"]
            whole[f"{owner}.weight"] = np.asarray(frame * value if len(value) == 1 else frame @ value, frame.dtype)
        elif part != FRAME:
            whole[name] = value
    return whole

"""Adapters: how large they are when nobody says, and from what is trained to what PEFT loads.

Most are the same in both, some are trained in parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_client.arrays import Array

CORE, FRAME = "core", "frame"
"""The parts of LoRA's second factor where it is trained in parts: the columns of `frame`, which `core` mixes or, with a
single row, scales. `core` is what is trained."""
CENTRE, SCALE = "centre", "scale"
"""What a task layer's features are moved and multiplied by before its weight sees them."""


def own_dimension(method: str) -> int:
    """The trainable numbers per layer that an adapter was measured best with, for exports and simulations."""
    return 64 if method == "pairs" else 16


def folded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """A PEFT adapter's tensors: factors that are trained in parts as one, and a task layer for features as they are."""
    return _plain_heads(_whole_factors(tensors))


def _plain_heads(tensors: Mapping[str, Array]) -> dict[str, Array]:
    found = {name: value for name, value in tensors.items() if name.rpartition(".")[2] not in (CENTRE, SCALE)}
    for name, scale in tensors.items():
        owner, _, part = name.rpartition(".")
        if part == SCALE:
            weight, bias = f"{owner}.weight", f"{owner}.bias"
            found[weight] = np.asarray(tensors[weight] * scale, scale.dtype)
            if bias in tensors:  # or there is no centre
                found[bias] = np.asarray(tensors[bias] - found[weight] @ tensors[f"{owner}.{CENTRE}"], scale.dtype)
    return found


def _whole_factors(tensors: Mapping[str, Array]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, value in tensors.items():
        owner, _, part = name.removesuffix(".weight").rpartition(".")
        if part == CORE:
            frame = tensors[f"{owner}.{FRAME}.weight"]
            found[f"{owner}.weight"] = np.asarray(frame * value if len(value) == 1 else frame @ value, frame.dtype)
        elif part != FRAME:
            found[name] = value
    return found

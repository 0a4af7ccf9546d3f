"""Adapters, from what is trained to what PEFT loads: most are the same in both, some are trained in parts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_client.arrays import Array

CORE, FRAME = "core", "frame"
"""The parts of LoRA's second factor where it is trained in parts: the columns of `frame`, which `core` mixes or, with a
single row, scales. `core` is what is trained."""
CENTRE, SCALE = "centre", "scale"
"""What a task layer's features are moved and multiplied by before its weight sees them: a factor for each, or a
symmetric matrix."""


def folded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """A PEFT adapter's tensors: factors that are trained in parts as one, and a task layer for features as they are."""
    return _plain_heads(_whole_factors(tensors))


def unfolded(plain: Mapping[str, Array], initial: Mapping[str, Array]) -> dict[str, Array]:
    """A PEFT adapter's tensors as a bundle's programs take them, whose own are `initial`: the way back, of task layers.

    A factor that is trained in parts does not come apart again.
    """
    tensors = {name: plain.get(name, value) for name, value in initial.items()}
    for name, scale in initial.items():
        owner, _, part = name.rpartition(".")
        if part == SCALE:
            weight, bias = f"{owner}.weight", f"{owner}.bias"
            whole = np.linalg.inv(scale) if scale.ndim > 1 else np.diag(1 / scale)
            tensors[weight] = np.asarray(plain[weight] @ whole, scale.dtype)
            if bias in plain:
                tensors[bias] = np.asarray(plain[bias] + plain[weight] @ initial[f"{owner}.{CENTRE}"], scale.dtype)
    return tensors


def _plain_heads(tensors: Mapping[str, Array]) -> dict[str, Array]:
    plain = {name: value for name, value in tensors.items() if name.rpartition(".")[2] not in (CENTRE, SCALE)}
    for name, scale in tensors.items():
        owner, _, part = name.rpartition(".")
        if part == SCALE:
            weight, bias = f"{owner}.weight", f"{owner}.bias"
            trained = tensors[weight]
            plain[weight] = np.asarray(trained @ scale if scale.ndim > 1 else trained * scale, scale.dtype)
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

"""Adapters, from what is trained to what PEFT loads: the same in both, but for the features of task layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_client.arrays import Array

CENTRE, SCALE = "centre", "scale"
"""The shift and the factor of a task layer's features before its weight: a number for each, or a
symmetric matrix."""


def folded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Make a PEFT adapter's tensors of what is trained: its task layer for features as they are."""
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


def unfolded(plain: Mapping[str, Array], initial: Mapping[str, Array]) -> dict[str, Array]:
    """Make tensors as a bundle's programs take them, whose own are `initial`, of a PEFT adapter's: the way back."""
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

"""From what is trained to what PEFT loads: most adapters are the same in both, some are trained in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CORE, FRAME = "core", "frame"
"""The parts of LoRA's second factor in an aligned adapter: `frame @ core`, of which `core` is trained."""


def folded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """A PEFT adapter's tensors, with factors that are trained in parts as one."""
    found: dict[str, Array] = {}
    for name, value in tensors.items():
        owner, _, part = name.removesuffix(".weight").rpartition(".")
        if part == CORE:
            frame = tensors[f"{owner}.{FRAME}.weight"]
            found[f"{owner}.weight"] = np.asarray(frame @ value, frame.dtype)
        elif part != FRAME:
            found[name] = value
    return found

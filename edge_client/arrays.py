"""The types of what programs, estimates and optimizers take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""An array, float32 for weights and gradients; a Python number beside it does not widen it."""
Floats = NDArray[np.float32]
Arrays = Mapping[str, Array]
Weights = dict[str, Array]
"""Arrays by parameter; an optimizer's state has the same form."""


def writable(array: Array) -> Array:
    """Return the array itself, or a copy of one that may not be written, for libraries that take no other."""
    return array if array.flags.writeable else np.array(array)

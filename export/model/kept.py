"""Weights that come quantized from their file, so that a runtime that can hold those numbers does not round again.

A model's weights are float32 tensors everywhere. One that was dequantized from blocks has these noted beside it; a
lowering that knows the form stores them, and every other one quantizes the tensor as if it were any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_client.arrays import Floats
from edge_client.bundle.manifest import Precision

_NOTE = "_spry_kept"


class KeptBlocks(Protocol):
    """A weight [out, in] in blocks of 32 columns: `scale * (code - middle) + shift`."""

    bits: int
    """4, where codes are 0 to 15 around 8; or 8, where they are bytes around 128."""

    def digest(self) -> str:
        """Digest what distinguishes it from another."""
        ...

    def codes(self) -> NDArray[np.uint8]:
        """[out, in / 32, bytes]: two codes a byte in 4 bits, the even column's below."""
        ...

    def scales(self) -> Floats:
        """[out, in / 32]."""
        ...

    def shifts(self) -> Floats | None:
        """[out, in / 32]; None where all are zero."""
        ...


def keep(tensors: Iterable[Tensor], kept: Mapping[nn.Parameter, KeptBlocks]) -> None:
    """Note the blocks beside those tensors that are a model's parameters, wherever these lie by now."""
    places = {parameter.data_ptr(): blocks for parameter, blocks in kept.items()}
    for tensor in tensors:
        if tensor.dim() == 2 and tensor.data_ptr() in places:
            setattr(tensor, _NOTE, places[tensor.data_ptr()])


def no_coarser(tensor: Tensor, precision: Precision) -> Precision:
    """Return the precision that a weight is stored in: one with 8 bits in its file keeps them where 4 are asked for."""
    kept = kept_blocks(tensor)
    return "int8" if precision == "int4" and kept is not None and kept.bits == 8 else precision


def kept_blocks(tensor: Tensor) -> KeptBlocks | None:
    """Return the blocks that a weight was made of."""
    return cast("KeptBlocks | None", getattr(tensor, _NOTE, None))

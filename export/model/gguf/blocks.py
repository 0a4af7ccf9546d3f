"""A file's own blocks of 32 numbers, in the order in which transformers has their rows: Q4_0, Q4_1 and Q8_0."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Floats

_SIZE = 32
_HALF = _SIZE // 2


class _Form(NamedTuple):
    bits: int
    numbers: int
    """Half-precision numbers before a block's codes: its scale, and in Q4_1 its smallest value."""


FORMS = {"Q4_0": _Form(4, 1), "Q4_1": _Form(4, 2), "Q8_0": _Form(8, 1)}
"""The forms, by the name of a `GGMLQuantizationType`."""


class GgufBlocks:
    """See `export.model.kept.KeptBlocks`.

    Args:
        rows: bytes as they are in the file, row by row; they stay there until they are asked for.
        form: how they are written, of `FORMS`.
        order: of the rows; None for the file's.
    """

    def __init__(self, rows: NDArray[np.uint8], form: str, order: NDArray[np.intp] | None = None) -> None:
        self._rows, self._form, self._order = rows, FORMS[form], order
        self._name = form
        self.bits = self._form.bits

    def digest(self) -> str:
        return f"{self._name} {hashlib.sha256(self._blocks().data).hexdigest()}"

    def codes(self) -> NDArray[np.uint8]:
        codes = self._blocks()[:, :, 2 * self._form.numbers :]
        if self.bits == 8:
            return codes ^ np.uint8(128)  # signed bytes, around 128 instead of zero
        first, second = codes & np.uint8(15), codes >> np.uint8(4)  # of the first half of a block, and of the second
        apart = np.concatenate([first, second], -1)
        return apart[..., 0::2] | (apart[..., 1::2] << np.uint8(4))

    def scales(self) -> Floats:
        return self._number(0)

    def shifts(self) -> Floats | None:
        if self._form.numbers == 1:
            return None
        return self._number(1) + 8 * self.scales()  # codes count from the block's smallest value

    def _number(self, at: int) -> Floats:
        halves = np.ascontiguousarray(self._blocks()[:, :, 2 * at : 2 * at + 2])
        return halves.view("<f2")[..., 0].astype(np.float32)

    def _blocks(self) -> NDArray[np.uint8]:
        """[out, blocks, bytes of a block]."""
        rows = self._rows if self._order is None else self._rows[self._order]
        size = 2 * self._form.numbers + (_SIZE if self.bits == 8 else _HALF)
        return np.ascontiguousarray(rows).reshape(len(rows), -1, size)

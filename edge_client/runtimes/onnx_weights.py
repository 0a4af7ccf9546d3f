"""Weights that come to an ONNX model from outside, so that segments of equal graphs share one session.

A session takes memory for each of its nodes, in a chain of many blocks as much as a step's values. Blocks of one
structure have equal graphs, byte for byte, with weights in files beside them. Where a model declares these weights as
inputs too, those of any block can be given to it, where they are mapped: once for all programs that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_client.arrays import Array

_TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_}
"""The NumPy types by their numbers in ONNX."""
_VARINT, _BYTES = 0, 2
"""Kinds of protobuf's fields."""
_GRAPH, _INITIALIZER, _INPUT = 7, 5, 11
_DIMS, _DATA_TYPE, _NAME, _EXTERNAL = 1, 2, 8, 13


class OutsideWeight(NamedTuple):
    """A weight that lies in a file beside its model."""

    name: str
    kind: int
    """The number of its type in ONNX."""
    shape: tuple[int, ...]
    file: str
    offset: int

    def of(self, mapped: Array) -> Array:
        """Return it as it lies in its file's bytes."""
        dtype = np.dtype(_TYPES[self.kind])
        end = self.offset + int(np.prod(self.shape)) * dtype.itemsize
        return mapped[self.offset : end].view(dtype).reshape(self.shape)


def outside_weights(model: bytes) -> list[OutsideWeight] | None:
    """Find a model's weights in files beside it.

    Returns:
        None if a weight has a type that no array has or lies in another folder, or if the bytes are no model's: ONNX
        Runtime then says what is wrong.
    """
    try:
        graphs = [value for number, value in _fields(memoryview(model)) if number == _GRAPH]
        tensors = [value for graph in graphs for number, value in _fields(graph) if number == _INITIALIZER]
        weights = [weight for tensor in tensors for weight in _outside(tensor)]
    except (AttributeError, IndexError, KeyError, ValueError):
        return None
    return weights if all(w.kind in _TYPES and w.offset >= 0 and Path(w.file).name == w.file for w in weights) else None


def taking(model: bytes, weights: Sequence[OutsideWeight]) -> bytes:
    """Return a model whose weights may be given as inputs: fields that come again are added to those before."""
    return model + _field(_GRAPH, b"".join(_field(_INPUT, _described(weight)) for weight in weights))


# --- protobuf --------------------------------------------------------------------------------------------------------


def _outside(tensor: memoryview) -> Iterator[OutsideWeight]:
    fields: dict[int, list[Any]] = {}
    for number, value in _fields(tensor):
        fields.setdefault(number, []).append(value)
    if _EXTERNAL in fields:
        entries = (dict(_fields(entry)) for entry in fields[_EXTERNAL])
        where = {_text(entry[1]): _text(entry[2]) for entry in entries}
        name, shape = _text(fields[_NAME][0]), tuple(fields.get(_DIMS, ()))
        yield OutsideWeight(name, fields[_DATA_TYPE][0], shape, where["location"], int(where.get("offset", 0)))


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield numbers and values of a message's fields: integers, and bytes."""
    at = 0
    while at < len(message):
        tag, at = _integer(message, at)
        value, at = _integer(message, at)
        if tag & 7 == _BYTES:
            value, at = message[at : at + value], at + value
        elif tag & 7 != _VARINT:
            raise ValueError(f"no field of a model is of the kind {tag & 7}")
        yield tag >> 3, value


def _integer(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _text(value: Any) -> str:
    """Decode a field; an integer in its place has no bytes, and is refused."""
    decoded: str = value.tobytes().decode()
    return decoded


def _described(weight: OutsideWeight) -> bytes:
    """Describe an input by its name, type and shape."""
    shape = b"".join(_field(1, _field(1, size)) for size in weight.shape)
    return _field(1, weight.name.encode()) + _field(2, _field(1, _field(1, weight.kind) + _field(2, shape)))


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _written(number << 3 | _VARINT) + _written(value)
    return _written(number << 3 | _BYTES) + _written(len(value)) + value


def _written(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])

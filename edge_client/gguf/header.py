"""Read the header before a GGUF file's weights: its settings, its words, and where each tensor lies.

Nothing is believed that the file says of itself: every count and length is held against the bytes that are there.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from edge_client.errors import SpryError

MAGIC = b"GGUF"
SUFFIX = ".gguf"
_VERSIONS = 2, 3
_SWAPPED = tuple(version << 24 for version in _VERSIONS)
_SCALARS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 4
_ALIGNMENT = "general.alignment"
_SPLIT = "split.count"

T = TypeVar("T")


class BadGguf(SpryError):
    """A file that is no GGUF, or not a whole one, or that says what this version cannot use."""


class TensorInfo(NamedTuple):
    """A tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as numpy and torch have it."""
    kind: int
    """The format of its numbers: a `GGMLQuantizationType`."""
    offset: int
    """The offset in the file."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class GgufHeader:
    """A file's settings and tensors.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with path.open("rb") as file:
                self.bytes = file.seek(0, 2)
                if self.bytes < len(MAGIC):
                    raise BadGguf(f"{path} is no GGUF: it has {self.bytes} bytes")
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    _Reading(self, mapped).read()
        except OSError as error:
            raise BadGguf(f"the model {path} cannot be read: {error.strerror or error}") from None
        if (parts := self.settings.get(_SPLIT, 1)) != 1:
            raise BadGguf(
                f"{path} is one of {parts} parts of a model; join them (llama-gguf-split does), and give the result"
            )

    @property
    def architecture(self) -> str:
        return self.needed("general.architecture", str)

    def needed(self, key: str, kind: type[T]) -> T:
        """Return a setting that the model cannot do without."""
        value = self.settings.get(key)
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise BadGguf(f"{self.path} has no {key} that is usable here; take another copy of the model")
        return cast("T", value)

    def of(self, key: str, default: T) -> T:
        """Return a setting of the architecture's own, or what stands for it where the file has none."""
        name = f"{self.architecture}.{key}"
        return self.needed(name, type(default)) if name in self.settings else default

    def own(self, key: str, kind: type[T]) -> T:
        """Return a setting of the architecture's own that the model cannot do without."""
        return self.needed(f"{self.architecture}.{key}", kind)


def is_gguf(path: Path) -> bool:
    """Tell whether a file begins as a GGUF file."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class _Reading:
    """Walks once through the bytes of a header."""

    def __init__(self, header: GgufHeader, mapped: mmap.mmap) -> None:
        self._header, self._bytes, self._at = header, mapped, 0

    def read(self) -> None:
        path = self._header.path
        if self._taken(4) != MAGIC:
            raise BadGguf(f"{path} is no GGUF: it does not begin with those letters")
        version = self._number("<u4")
        if version not in _VERSIONS:
            known = f"versions {' and '.join(map(str, _VERSIONS))} in little-endian can be read"
            if version in _SWAPPED:
                raise BadGguf(f"{path} is a GGUF written for big-endian machines; {known}")
            raise BadGguf(f"{path} is a GGUF of version {version}; {known}")
        tensors, settings = self._number("<u8"), self._number("<u8")
        for _ in range(settings):
            self._setting()
        found = [self._tensor() for _ in range(tensors)]
        self._place(found)

    def _setting(self) -> None:
        key = self._string()
        if key in self._header.settings:
            raise self._damaged(f"it has {key} twice")
        self._header.settings[key] = self._value(self._number("<u4"))

    def _tensor(self) -> TensorInfo:
        name, dimensions = self._string(), self._number("<u4")
        if not 1 <= dimensions <= _DIMENSIONS:
            raise self._damaged(f"its tensor {name[:60]} has {dimensions} dimensions")
        shape = tuple(self._number("<u8") for _ in range(dimensions))[::-1]
        return TensorInfo(name, shape, self._number("<u4"), self._number("<u8"))

    def _place(self, found: list[TensorInfo]) -> None:
        """Offsets count from the end of the header, rounded up."""
        step: int = self._header.settings.get(_ALIGNMENT, 32)
        if not isinstance(step, int) or step <= 0 or step & (step - 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._damaged(f"its {_ALIGNMENT} is {str(step)[:40]}")
        begin = -(-self._at // step) * step
        for tensor in found:
            if tensor.name in self._header.tensors:
                raise self._damaged(f"it has the tensor {tensor.name} twice")
            placed = tensor._replace(offset=begin + tensor.offset)
            if placed.offset > self._header.bytes:
                raise self._cut()
            self._header.tensors[tensor.name] = placed

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._number(self._scalar(kind))

    def _array(self) -> Any:
        kind, count = self._number("<u4"), self._number("<u8")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        form = np.dtype(self._scalar(kind))
        return np.frombuffer(self._taken(count * form.itemsize), form).tolist()

    def _scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._damaged(f"it has a setting of the kind {kind}")
        return _SCALARS[kind]

    def _number(self, form: str) -> Any:
        kind = np.dtype(form)
        return np.frombuffer(self._taken(kind.itemsize), kind)[0].item()

    def _string(self) -> str:
        (length,) = struct.unpack("<Q", self._taken(8))
        return self._taken(length).decode(errors="replace")

    def _taken(self, count: int) -> bytes:
        if count > len(self._bytes) - self._at:
            raise self._cut()
        self._at += count
        return self._bytes[self._at - count : self._at]

    def _cut(self) -> BadGguf:
        path, there = self._header.path, self._header.bytes
        return BadGguf(f"{path} is cut off: it has {there:,} bytes and describes more; take another copy of it")

    def _damaged(self, what: str) -> BadGguf:
        return BadGguf(f"{self._header.path} is damaged: {what}; take another copy of it")

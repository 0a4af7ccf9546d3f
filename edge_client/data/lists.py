"""The values of a JSON list in a file, one at a time, however they are broken into lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

_MARKS = re.compile(rb'["\\{}\[\],]')
_CHUNK = 1 << 20
_BOM = b"\xef\xbb\xbf"


def is_list(file: BinaryIO) -> bool:
    return file.read(_CHUNK).removeprefix(_BOM).lstrip().startswith(b"[")


def spans(file: BinaryIO, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where each value begins, and ends: of the whole file, or from where a value of its list begins.

    Only marks outside of texts are looked at; whether a value is JSON is for who reads it.
    """
    depth, begun = int(start > 0), start
    for at, mark in _marks(file, start):
        ends = depth == 1 and mark in b",]}"
        if ends:
            yield begun, at
        depth += (mark in b"[{") - (mark in b"]}")
        if ends or (depth == 1 and mark == b"["):
            begun = at + 1
    if depth > 0:
        yield begun, file.tell()


def _marks(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """What opens, closes or divides, where it stands in no text."""
    file.seek(start)
    quoted, escaped, offset = False, -1, start
    while chunk := file.read(_CHUNK):
        for found in _MARKS.finditer(chunk):
            at, mark = offset + found.start(), found[0]
            if at == escaped:
                continue
            if mark == b"\\":
                escaped = at + 1
            elif mark == b'"':
                quoted = not quoted
            elif not quoted:
                yield at, mark
        offset += len(chunk)

"""Files that are not UTF-8, as spreadsheets of other systems write them: recognized, and read as what they are."""

from __future__ import annotations

import codecs
import shutil
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_WESTERN = "cp1252", "latin-1"
"""The encodings of Western Europe's programs; the second has a letter for every byte."""
_NAMES = {"utf-16": "UTF-16", "cp1252": "Windows-1252", "latin-1": "Latin-1"}


class Readable(NamedTuple):
    """A file's text as UTF-8."""

    path: Path
    encoding: str = ""
    """The file's encoding, where that is not UTF-8."""
    copy: IO[bytes] | None = None
    """Holds the file of the path, which goes when nobody holds this."""


def readable(path: Path) -> Readable:
    """Return the file itself where any of its lines is in UTF-8, else a copy that is.

    Broken lines in a file with letters in UTF-8 are named, not guessed at.
    """
    encoding = _encoding(path)
    if not encoding:
        return Readable(path)
    copy = tempfile.NamedTemporaryFile(suffix=path.suffix)  # noqa: SIM115 -- held as long as its rows are read
    with (
        path.open(encoding=encoding, newline="") as source,
        open(copy.name, "w", encoding="utf-8", newline="") as target,  # noqa: PTH123
    ):
        shutil.copyfileobj(source, target)
    return Readable(Path(copy.name), _NAMES[encoding], copy)


def _encoding(path: Path) -> str:
    """Recognise a file's encoding; empty for UTF-8, and for what is no text in a known one."""
    broken = False
    with path.open("rb") as file:
        start = file.read(2)
        if start in _UTF_16:
            return _UTF_16[start]
        file.seek(0)
        for line in file:
            if line.isascii():
                continue
            try:
                line.decode()
            except UnicodeDecodeError:
                broken = True
            else:
                return ""
    return next((name for name in _WESTERN if _decodes(path, name)), "") if broken else ""


def _decodes(path: Path, encoding: str) -> bool:
    """Tell whether a file may be text in an encoding: it decodes without control characters."""
    with path.open("rb") as file:
        for line in file:
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError:
                return False
            if any(letter < " " and letter not in "\t\r\n\f" for letter in text):
                return False
    return True

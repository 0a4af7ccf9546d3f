"""As much of ELF, for 64 bits and little-endian, as says what a shared library needs and offers."""

import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

LOAD, DYNAMIC_SYMBOLS, VERSIONS, DYNAMIC = 1, 11, 0x6FFFFFFF, 6
NEEDED = 1
WEAK = 2


@dataclass(frozen=True)
class Symbol:
    name: str
    defined: bool
    weak: bool
    versioned: bool
    """Whether a version of a library of the system was asked for by name."""


@dataclass(frozen=True)
class Section:
    name: int
    kind: int
    offset: int
    size: int
    link: int


class Library:
    """A shared library's dynamic part."""

    def __init__(self, content: bytes) -> None:
        assert content[:6] == b"\x7fELF\x02\x01"
        self.content = content
        (headers,) = struct.unpack_from("<Q", content, 40)
        size, count, names = struct.unpack_from("<HHH", content, 58)
        rows = [struct.unpack_from("<II8x8xQQI", content, headers + size * i) for i in range(count)]
        self.sections = [Section(*row) for row in rows]
        self.section_names = self.sections[names]

    @property
    def machine(self) -> int:
        return struct.unpack_from("<H", self.content, 18)[0]

    def _section(self, kind: int) -> Section:
        return next(section for section in self.sections if section.kind == kind)

    def _text(self, table: Section, at: int) -> str:
        start = table.offset + at
        return self.content[start : self.content.index(b"\0", start)].decode()

    def _rows(self, section: Section, pattern: str) -> list[tuple[int, ...]]:
        content = self.content[section.offset : section.offset + section.size]
        return list(struct.iter_unpack(pattern, content))

    @cached_property
    def symbols(self) -> list[Symbol]:
        table = self._section(DYNAMIC_SYMBOLS)
        texts = self.sections[table.link]
        versions = self._rows(self._section(VERSIONS), "<H")
        return [
            Symbol(self._text(texts, name), section != 0, info >> 4 == WEAK, version & 0x7FFF > 1)
            for (name, info, _, section, _, _), (version,) in zip(self._rows(table, "<IBBHQQ"), versions, strict=True)
        ]

    def _dynamic(self, tag: int) -> list[str]:
        table = self._section(DYNAMIC)
        texts = self.sections[table.link]
        rows = takewhile(lambda row: row[0], self._rows(table, "<QQ"))
        return [self._text(texts, value) for kind, value in rows if kind == tag]

    @property
    def needed(self) -> list[str]:
        return self._dynamic(NEEDED)

    @cached_property
    def offered(self) -> set[str]:
        return {symbol.name for symbol in self.symbols if symbol.defined}

    @cached_property
    def texts(self) -> set[bytes]:
        """Every text that ends with a zero among what the code only reads."""
        found = set()
        for section in self.sections:
            if self._text(self.section_names, section.name).startswith(".rodata"):
                found |= set(self.content[section.offset : section.offset + section.size].split(b"\0"))
        return found

    @property
    def alignment(self) -> int:
        """The largest page on which the system can map every part of it."""
        offset, size, count = struct.unpack_from("<Q14xHH", self.content, 32)
        rows = [struct.unpack_from("<I44xQ", self.content, offset + size * i) for i in range(count)]
        return min(alignment for kind, alignment in rows if kind == LOAD)

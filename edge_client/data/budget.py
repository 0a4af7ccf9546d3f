"""Bound the steps, characters and processor time of a chat template, and refuse one that exceeds them.

Loops, calls and operators are counted, and so is what they make, before it is made where a few words could make much of
it. The time is for what is left: many steps over what is large each.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

STEPS = 200_000
SIZE = 1 << 25
"""Characters, an element of a list as many."""
SECONDS = 1.0
"""Seconds of processor time of this thread."""
_NUMBER = 100_000
"""The largest width or count that a call may be given."""
_BITS = 4096
"""The most bits of a whole number."""
_ELEMENT = 64
_LOOK = 32
"""Steps between two looks at the clock."""
_WIDE = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\d*\.)?(?:\d{5,}|\*)|\.\*")
_METHODS = {"translate", "encode", "maketrans", "to_bytes", "from_bytes", "fromkeys"}
"""Methods that are refused: their results are no text, or longer than their arguments tell."""

_LISTS: tuple[Any, ...] = (list, tuple, set, frozenset)
_TABLE: Any = dict
_NESTED: tuple[Any, ...] = (*_LISTS, dict)


class TooMuch(Exception):
    """A template went beyond its budget."""


class Budget(threading.local):
    """The remaining budget of one rendering, in one thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._steps, self._size = STEPS, SIZE
        self._until = time.thread_time() + SECONDS

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise TooMuch(f"takes more than {STEPS:,} steps")
        if self._steps % _LOOK == 0 and time.thread_time() > self._until:
            raise TooMuch(f"takes more than {SECONDS:g} s")

    def reserve(self, size: float) -> None:
        """For a text of so many characters, or for as much else."""
        if size > self._size:
            raise TooMuch(f"makes more than {SIZE:,} characters")

    def made(self, value: Any) -> Any:
        """Pay for what an operation made."""
        waiting: list[Any] = [value]
        while waiting:
            one: Any = waiting.pop()
            if isinstance(one, str | bytes):
                self.pay(len(one))
            elif isinstance(one, _LISTS):
                self.pay(_ELEMENT * len(one))
                waiting += [inner for inner in one if isinstance(inner, _NESTED)]
            elif isinstance(one, _TABLE):
                self.pay(2 * _ELEMENT * len(one))
                waiting += [inner for inner in one.values() if isinstance(inner, _NESTED)]
            elif isinstance(one, int) and one.bit_length() > _BITS:
                raise TooMuch(f"makes numbers of more than {_BITS} bits")
        return value

    def pay(self, size: int) -> None:
        self.reserve(size)
        self._size -= size

    # --- what a template does ---

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """A loop's values, each a step."""
        for value in values:
            self.step()
            yield value

    def binary(self, operator: str, left: Any, right: Any, work: Callable[[Any, Any], Any]) -> Any:
        self.step()
        if operator == "**":
            self.reserve(0 if _bits(left) * abs(right) <= _BITS else SIZE + 1)
        elif operator == "*":
            self.reserve(max(_size(left) * _count(right), _size(right) * _count(left)))
        elif operator == "+":
            self.reserve(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            self._format(left, right)
        return self.made(work(left, right))

    def call(
        self, name: str, owner: Any, work: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """A method, a filter, a function; `owner` is what it is of, or its first argument."""
        self.step()
        given = [*args, *named.values()]
        if name in _METHODS:
            raise TooMuch(f"calls {name}")
        for one in given:
            if isinstance(one, int) and one is not owner and abs(one) > _NUMBER:
                raise TooMuch(f"calls {name} with {one if abs(one) < 10**30 else 'a number of more than 30 digits'}")
        self._foresee(name, owner, [one for one in given if one is not owner])
        return self.made(work(*args, **named))

    def _foresee(self, name: str, owner: Any, given: list[Any]) -> None:
        """Refuse what would make much of little."""
        texts = [one for one in [owner, *given] if isinstance(one, str)]
        widths = [abs(one) for one in given if isinstance(one, int)]
        if name == "replace" and len(texts) > 2:
            self.reserve(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        elif name in ("join", "sum"):
            parts: Any = next((one for one in [owner, *given] if isinstance(one, _LISTS)), ())
            between = max(map(len, texts), default=0)
            self.reserve(sum(between + _size(part) for part in parts))
        elif name in ("indent", "expandtabs"):
            lines = 1 + max((text.count("\n") + text.count("\t") for text in texts), default=0)
            self.reserve(lines * max([*widths, *map(len, texts[1:]), 8]))
        elif name == "tojson":
            self.reserve(max([0, *widths]) * _ELEMENT)
        elif name == "format" and texts:
            self._format(texts[0], given)

    def _format(self, text: str, given: Any) -> None:
        if _WIDE.search(text) or re.search(r":[^{}]*(?:\d{5,}|\{)", text):
            raise TooMuch("asks for a width of more than four digits, or one that it works out")
        values: Any = given.values() if isinstance(given, _TABLE) else given if isinstance(given, _LISTS) else [given]
        marks = text.count("%") + text.count("{")
        self.reserve(len(text) + marks * (_NUMBER // 10 + max(map(_size, values), default=0)))


def guarded(budget: Budget, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it does."""
    at = 1 if hasattr(work, "jinja_pass_arg") else 0

    @wraps(work)
    def within(*args: Any, **named: Any) -> Any:
        return budget.call(name, args[at] if len(args) > at else None, work, args, named)

    return within


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return _ELEMENT * len(value) if isinstance(value, _NESTED) else 1


def _count(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 1


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0

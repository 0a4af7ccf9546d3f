"""A device's training data as examples of a task.

    seq-cls      text, label (a name or its number), and text_pair where a text comes in pairs
    qa           question, context, answers: SQuAD's {"text": [...], "answer_start": [...]}, empty where there is none
    causal-lm    text

Rows are checked once for each job and then read again as training needs them: what stays in memory is where each row
starts.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

import msgspec

from edge_client.errors import DataError

from .sources import BadRow, Row, Source, bad_row

BadRows = Literal["refuse", "skip"]

SHOWN = 3
"""Bad rows that are told one by one."""


class Example(NamedTuple):
    """One row, checked; `pair` is the context of a question."""

    text: str
    pair: str | None = None
    label: int = 0
    answer: str | None = None
    answer_start: int = 0
    answers: tuple[str, ...] = ()
    """All that are right, of which `answer` is the first; none where there is no answer."""


Check = Callable[[Row], Example]


@dataclass(frozen=True)
class Skipped:
    """Rows that were left out."""

    count: int = 0
    first: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f"; and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return "; ".join(self.first) + more


class Examples(Sequence[Example]):
    """The rows of a source that fit a task, each read when it is asked for.

    Args:
        source: where the rows are.
        check: from a row to an example.
        places: where each row is.
        digests: of each row's content.
        skipped: what was left out.
    """

    def __init__(
        self, source: Source, check: Check, places: array[int], digests: array[int], skipped: Skipped | None = None
    ) -> None:
        self.skipped = skipped or Skipped()
        self._source = source
        self._check = check
        self._places = places
        self._digests = digests

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return self._part(range(len(self))[index])
        return self._read(self._places[index], self._digests[index])

    def _read(self, place: int, digest: int) -> Example:
        try:
            row = self._source.row(place)
            if _digest(row) == digest:
                return self._check(row)
        except (BadRow, OSError):
            pass
        raise DataError(f"{self._source.name} changed while it was in use; run again, and replace files as a whole")

    @property
    def places(self) -> array[int]:
        """Where each row is in its source."""
        return self._places

    @property
    def fingerprint(self) -> str:
        """The same for the same rows in the same order."""
        return hashlib.sha256(self._digests.tobytes()).hexdigest()[:32]

    def split(self, holdout: float, seed: int = 0) -> tuple[Examples, Examples]:
        """The rows to train on and those held back: a row's content decides, wherever it stands and whatever is added.

        Of two rows or more, each part has at least one.
        """
        if not 0 <= holdout < 1:
            raise DataError(f"the share held back must be from 0 to less than 1, got {holdout}")
        ranks = [_mix(digest, seed) for digest in self._digests]
        held = {i for i, rank in enumerate(ranks) if rank < holdout}
        if holdout > 0 and len(ranks) > 1:
            held |= {min(range(len(ranks)), key=ranks.__getitem__)}
            held -= {max(range(len(ranks)), key=ranks.__getitem__)}
        return self._part(i for i in range(len(self)) if i not in held), self._part(sorted(held))

    def _part(self, indices: Iterable[int]) -> Examples:
        chosen = list(indices)
        places = array("q", (self._places[i] for i in chosen))
        return Examples(self._source, self._check, places, array("Q", (self._digests[i] for i in chosen)), self.skipped)


def examples_for(source: Source, task: str, labels: Sequence[str], *, bad_rows: BadRows = "refuse") -> Examples:
    """The rows as examples of a task; `skip` leaves out those that cannot be used, `refuse` gives up at the first."""
    check, places, digests = _checker(task, labels), array("q"), array("Q")
    count, first = 0, list[str]()
    for place, at, row, broken in source.rows():
        problem = broken
        if row is not None:
            try:
                check(row)
                places.append(at)
                digests.append(_digest(row))
                continue
            except BadRow as error:
                problem = str(error)
        if bad_rows == "refuse":
            raise bad_row(source, place, problem)
        count += 1
        if len(first) < SHOWN:
            first.append(f"{place}: {problem}")
    skipped = Skipped(count, tuple(first))
    if not places:
        why = f": all {count} rows were left out ({skipped})" if count else "; it is empty"
        raise DataError(f"{source.name} has no example{why}")
    return Examples(source, check, places, digests, skipped)


# --- rows ------------------------------------------------------------------------------------------------------------


def _checker(task: str, labels: Sequence[str]) -> Check:
    if task == "qa":
        return _question
    if task == "causal-lm":
        return lambda row: Example(_string(row, "text"))
    numbers = {name: i for i, name in enumerate(labels)}

    def classified(row: Row) -> Example:
        pair = _string(row, "text_pair") if row.get("text_pair") not in (None, "") else None
        return Example(_string(row, "text"), pair, class_number(row, numbers))

    return classified


def _string(row: Row, field: str) -> str:
    value = row.get(field)
    if value is None:
        raise BadRow(f"has no {field}; its fields are {', '.join(map(str, row))[:200] or 'none'}")
    if not isinstance(value, str):
        raise BadRow(f"{field} must be a text, got {type(value).__name__}")
    if not value.strip():
        raise BadRow(f"{field} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{field} holds half of a surrogate pair, which is no text") from None
    return value


def class_number(row: Row, numbers: Mapping[str, int]) -> int:
    """A row's label, given by a name or by its number."""
    value = row.get("label")
    if value is None or value == "":
        raise BadRow(f"has no label; its fields are {', '.join(map(str, row))[:200] or 'none'}")
    if isinstance(value, str):
        if value.strip() in numbers:
            return numbers[value.strip()]
        if value.strip().isdecimal() and len(value) < 10:
            value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(numbers):
        return value
    known = ", ".join(numbers) or "none"
    raise BadRow(f"unknown label {str(value)[:80]!r}; the job's labels are {known} (or 0 to {len(numbers) - 1})")


def _question(row: Row) -> Example:
    question, context = _string(row, "question"), _string(row, "context")
    found = _answers(row.get("answers"))
    if not found.text:
        return Example(question, context)
    answer, start = found.text[0], found.answer_start[0]
    if context[start : start + len(answer)] != answer:
        raise BadRow(f"the answer {answer[:80]!r} is not at position {start} of its context")
    return Example(question, context, answer=answer, answer_start=start, answers=tuple(found.text))


class _Answers(msgspec.Struct):
    """SQuAD's way to write answers down."""

    text: list[str] = []
    answer_start: list[int] = []


class _Answer(msgspec.Struct):
    text: str
    answer_start: int


def _answers(value: object) -> _Answers:
    """All answers; none where the context holds none."""
    if isinstance(value, str) and value.strip():
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadRow(f"answers is not JSON: {error}") from None
    try:
        if isinstance(value, list):
            many = msgspec.convert(value, list[_Answer])
            answers = _Answers([one.text for one in many], [one.answer_start for one in many])
        else:
            answers = msgspec.convert(value or {}, _Answers)
    except msgspec.ValidationError as error:
        raise BadRow(f'answers must look like {{"text": ["..."], "answer_start": [0]}}: {error}') from None
    if len(answers.text) != len(answers.answer_start) or any(start < 0 for start in answers.answer_start):
        raise BadRow("answers must have a text and a position from 0 on each")
    return answers if answers.text and answers.text[0] else _Answers()


def _digest(row: Row) -> int:
    """64 bits of a row's content."""
    content = repr(sorted((str(key), value) for key, value in row.items() if value is not None))
    data = content.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _mix(digest: int, seed: int) -> float:
    """A number from 0 to less than 1."""
    data = hashlib.blake2b(digest.to_bytes(8, "little"), digest_size=6, key=str(seed).encode()).digest()
    return int.from_bytes(data, "little") / 2**48

"""The data of this device: counted before it takes part, and read as examples of the jobs that come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from edge_client.bundle.manifest import ModelSpec
from edge_client.errors import DataError
from edge_client.events import Event, Tell, silent

from .columns import Columns, for_device, known_names, names_in
from .examples import BadRows, Check, Example, Examples, examples_for
from .sources import BadRow, Row, UnknownLabel, count_rows, open_data
from .templates import Template

_USUAL = Columns()
_NAMED = 3
"""The number of labels that are listed one by one."""


class OwnData:
    """A device's own rows: those to train on, and a share that is held back for evaluation."""

    def __init__(
        self,
        data: Path | str | Iterable[Row] | None,
        *,
        bad_rows: BadRows = "refuse",
        holdout: float = 0.1,
        columns: Columns = _USUAL,
        tell: Tell = silent,
    ) -> None:
        if not 0 <= holdout < 1:
            raise DataError(f"the share held back (--holdout) must be from 0 to less than 1, got {holdout}")
        self._source = None if data is None else open_data(data, known_names(columns))
        self._columns = columns
        self._bad_rows: BadRows = bad_rows
        self._holdout = holdout
        self._tell = tell
        self._read: tuple[object, Examples, Examples] | None = None

    def count(self) -> int:
        """Rows, at least one, with the columns that were named."""
        if self._source is None:
            raise DataError("there is no data to train on: give Client(data=...) or --data")
        names = names_in(self._source) if any(self._columns) else ()
        for column in (part for columns in self._columns for part in columns.split("+") if part):
            if column not in names:
                known = ", ".join(names)[:200] or "none"
                what_to_do = f"its columns are {known}: say which to take (--text, --pair, --label)"
                raise DataError(f"{self._source.name} has no column {column!r}; {what_to_do}")
        rows = count_rows(self._source, refuse=self._bad_rows == "refuse")
        if not rows:
            raise DataError(f"{self._source.name} has no example; it is empty")
        return rows

    def stamp(self) -> object:
        """Another value when the rows may have changed."""
        return None if self._source is None else self._source.stamp()

    def misfit(self, fields: Sequence[str], check: Callable[[Row], object], *, converses: bool) -> str:
        """Say how many rows are no examples of a job, and why; empty where it can train on these rows.

        Args:
            fields: the names of the parts of its task's rows.
            check: refuses a row that is no example.
            converses: whether rows may be conversations.
        """
        assert self._source is not None  # it was counted
        labels, others, count = Counter[str](), Counter[str](), 0
        for _, _, row, broken in for_device(self._source, fields, self._columns, converses=converses).rows():
            count += 1
            try:
                if row is None:
                    raise BadRow(broken)
                check(row)
            except UnknownLabel as error:
                labels[error.label] += 1
            except BadRow as error:
                others[str(error)] += 1
        bad = labels.total() + others.total()
        if not bad or (self._bad_rows == "skip" and bad < count):
            return ""
        parts = []
        if labels:
            named = ", ".join(f"{label!r} ({times})" for label, times in labels.most_common(_NAMED))
            more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
            parts = [f"{labels.total()} of {count} rows have a label that it does not know: {named}{more}"]
        parts += [f"{times} of {count} rows: {why}" for why, times in others.most_common(1)]
        return "; ".join(parts)

    def fitting(
        self, model: ModelSpec, fields: Sequence[str], check: Check, template: Template, *, converses: bool
    ) -> tuple[Examples, Examples]:
        """Make training and held-back examples for a model; read the file again where it has changed.

        Args:
            model: what the job trains.
            fields: what a row of its task calls its parts.
            check: what makes an example of a row.
            template: how the model reads conversations.
            converses: whether rows may be conversations.
        """
        assert self._source is not None  # it was counted
        key = model.task, model.labels, template.written(), self._source.stamp()
        if self._read is None or self._read[0] != key:
            source = for_device(self._source, fields, self._columns, converses=converses)
            seen = Counter[int]()
            examples = examples_for(source, _counting(check, seen), bad_rows=self._bad_rows)
            if model.labels and len(seen) == 1:
                (label,), count = seen, len(examples)
                one = f"all {count} examples are {model.labels[label]!r}"
                other = "this device can learn nothing about other classes"
                self._tell(Event("warning", f"{source.name}: {one}: {other}"))
            if examples.skipped.count:
                self._tell(Event("warning", f"{self._source.name}: rows left out: {examples.skipped}"))
            self._read = key, *examples.split(self._holdout)
        return self._read[1:]


def _counting(check: Check, seen: Counter[int]) -> Check:
    """Wrap a check so that it counts the classes of the rows that it has seen."""

    def counted(row: Row) -> Example:
        example = check(row)
        seen[example.label] += 1
        return example

    return counted

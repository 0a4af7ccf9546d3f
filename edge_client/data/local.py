"""The data of this device: counted before it takes part, and read as examples of the jobs that come."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edge_client.bundle.manifest import ModelSpec
from edge_client.errors import DataError
from edge_client.events import Event, Tell, silent

from .examples import BadRows, Check, Examples, examples_for
from .sources import Row, count_rows, open_data
from .templates import Template


class OwnData:
    """What is trained on, and a share that is held back to evaluate with."""

    def __init__(
        self,
        data: Path | str | Iterable[Row] | None,
        *,
        bad_rows: BadRows = "refuse",
        holdout: float = 0.1,
        tell: Tell = silent,
    ) -> None:
        if not 0 <= holdout < 1:
            raise DataError(f"the share held back (--holdout) must be from 0 to less than 1, got {holdout}")
        self._source = None if data is None else open_data(data)
        self._bad_rows: BadRows = bad_rows
        self._holdout = holdout
        self._tell = tell
        self._read: tuple[object, Examples, Examples] | None = None

    def count(self) -> int:
        """Rows, at least one."""
        if self._source is None:
            raise DataError("there is no data to train on: give Client(data=...) or --data")
        rows = count_rows(self._source, refuse=self._bad_rows == "refuse")
        if not rows:
            raise DataError(f"{self._source.name} has no example; it is empty")
        return rows

    def fitting(self, model: ModelSpec, check: Check, template: Template) -> tuple[Examples, Examples]:
        """Those to train on and those held back, for a model; read again when their file has changed."""
        assert self._source is not None  # it was counted
        key = model.task, model.labels, template.written(), self._source.stamp()
        if self._read is None or self._read[0] != key:
            examples = examples_for(self._source, check, bad_rows=self._bad_rows)
            if examples.skipped.count:
                self._tell(Event("warning", f"{self._source.name}: rows left out: {examples.skipped}"))
            self._read = key, *examples.split(self._holdout)
        return self._read[1:]

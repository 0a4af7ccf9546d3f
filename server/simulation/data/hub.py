"""Datasets of Hugging Face, by its library, which the extra `hub` brings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from edge_client.checkpoints import silent_hub
from edge_client.data.sources import Located, Row, Source
from edge_client.errors import DataError, RuntimeMissing

Splits = Mapping[str, Any]

_TESTS = ("test", "validation", "validation_matched", "dev")
"""The first of these that has labels: some tests are published without."""
_UNLABELLED = -1


class HubSource(Source):
    """Rows of one split, which the library keeps in files that are mapped into memory."""

    def __init__(self, split: Any, name: str) -> None:
        self.name = name
        self._split = split

    def rows(self) -> Iterator[Located]:
        for at, row in enumerate(self._split):
            yield Located(f"row {at + 1}", at, row)

    def row(self, at: int, /) -> Row:
        return self._split[at]


def open_splits(data: str) -> Splits:
    """Open the splits of `NAME`, `NAME:CONFIGURATION`, of a folder by the library, or of a .parquet file."""
    folder = Path(data)
    table, saved = folder.is_file(), (folder / "dataset_dict.json").is_file()
    tables = any(True for pattern in ("*.parquet", "data/*.parquet") for _ in folder.glob(pattern))
    if folder.is_dir() and not saved and not tables:
        raise DataError(f"{data} has no train.jsonl or train.csv with a row for each example; put your data there")
    silent = "" if table or saved or tables else silent_hub()
    if silent:
        os.environ["HF_HUB_OFFLINE"] = "1"  # the library then takes its own copy, without half a minute of retries
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        what = f"{data!r} is no folder with train.jsonl or train.csv; a dataset of Hugging Face"
        raise RuntimeMissing(data if table else what, "hub", str(error)) from error
    name, _, configuration = (data, "", "") if tables else data.partition(":")
    try:
        if table:
            return {"train": datasets.Dataset.from_parquet(data)}
        if saved:
            return cast("Splits", datasets.load_from_disk(data))
        return cast("Splits", datasets.load_dataset(name, configuration or None))
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        told = next(iter(str(error).splitlines()), type(error).__name__)
        if table:
            raise DataError(f"{data} is no table of Parquet: {told}") from error
        reason = f"the hub {silent} cannot be reached, and this machine has no copy of it" if silent else told
        raise DataError(
            f"{data!r} is neither a folder with train.jsonl or train.csv nor a dataset of Hugging Face: {reason}"
        ) from error


def columns(splits: Splits, data: str) -> Sequence[str]:
    if "train" not in splits:
        raise DataError(f"{data} has the splits {', '.join(splits)}; expected train, and one of {', '.join(_TESTS)}")
    return splits["train"].column_names


def labelled(splits: Splits, data: str, label: str) -> tuple[HubSource, HubSource]:
    """Select the rows to train on and to test on, without those that have no label."""
    tests = (_labelled(splits[name], label) for name in _TESTS if name in splits)
    test = next((split for split in tests if len(split)), None)
    if test is None:
        raise DataError(f"{data} has the splits {', '.join(splits)}; expected one of {', '.join(_TESTS)} with labels")
    return HubSource(_labelled(splits["train"], label), f"{data}, train"), HubSource(test, f"{data}, test")


def names(splits: Splits, label: str) -> Sequence[str]:
    """Return the classes' names, where the dataset has them."""
    return getattr(splits["train"].features.get(label), "names", None) or ()


def _labelled(split: Any, label: str) -> Any:
    if label not in split.column_names:
        return split
    values: list[Any] = split[label][:]
    if _UNLABELLED not in values:
        return split
    return split.select([row for row, value in enumerate(values) if value != _UNLABELLED])

import json

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes rows as a data set's folder, and names it."""

    def written(train, test, labels=None):
        for name, rows in (("train", train), ("test", test)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if labels is not None:
            (tmp_path / "labels.json").write_text(json.dumps(labels))
        return str(tmp_path)

    return written


@pytest.fixture
def numbered():
    """Rows of some classes and authors, each with a text of its own."""

    def rows(count, classes=3, authors=4, prefix="text"):
        return [
            {"text": f"{prefix} {i}", "label": i % classes, "author": f"author {i % authors}"} for i in range(count)
        ]

    return rows

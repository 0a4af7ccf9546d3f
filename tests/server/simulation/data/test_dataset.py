import csv
import json
import random
import sys

import pytest

from edge_client.data.columns import Columns
from edge_client.data.examples import Example
from edge_client.data.templates import Template
from edge_client.distribution import install_command
from edge_client.errors import DataError, RuntimeMissing
from server.simulation.data.dataset import open_dataset
from server.start.columns import columns_in
from server.start.rows import first_rows, open_rows
from tests import chats, shapes

ROWS = [{"text": "ice", "label": "no"}, {"text": "a lake", "label": "yes"}, {"text": "on it", "label": "no"}]


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


# --- folders ---


def test_lines_and_tables_are_the_same(tmp_path, write):
    lines = open_dataset(write(ROWS, ROWS[:2]), "seq-cls")
    folder = tmp_path / "table"
    folder.mkdir()
    for name, rows in (("train", ROWS), ("test", ROWS[:2])):
        write_csv(folder / f"{name}.csv", rows)
    table = open_dataset(str(folder), "seq-cls")
    assert list(lines.train) == list(table.train) == [Example("ice"), Example("a lake", None, 1), Example("on it")]
    assert list(lines.test) == list(table.test) == [Example("ice"), Example("a lake", None, 1)]
    assert lines.fingerprint == table.fingerprint
    assert (lines.name, table.name) == (tmp_path.name, "table")


@pytest.mark.parametrize(
    ("found", "names", "expected"),
    [
        (["yes", "no", "yes"], None, ("no", "yes")),
        (["yes", "no", "yes"], ["yes", "no"], ("yes", "no")),
        ([2, 0, 2], None, ("0", "1", "2")),  # numbers stay what they are, though nobody has 1
        (["10", "2", "10"], None, tuple(map(str, range(11)))),
        ([1, 0, 1], ["no", "yes"], ("no", "yes")),
        (["1", "0", "1"], ["no", "yes"], ("no", "yes")),
    ],
)
def test_labels(write, found, names, expected):
    rows = [{"text": "ice", "label": label} for label in found]
    dataset = open_dataset(write(rows, rows, names), "seq-cls")
    assert dataset.labels == dataset.classes.names == expected
    assert dataset.groups is dataset.classes
    assert dataset.classes.of.tolist() == [example.label for example in dataset.train]
    numbers = [int(label) if str(label).isdecimal() else expected.index(label) for label in found]
    assert dataset.classes.of.tolist() == numbers


def test_labels_of_the_model_come_first(write):
    dataset = open_dataset(write(ROWS, ROWS, ["no", "yes"]), "seq-cls", labels=("maybe", "yes", "no"))
    assert dataset.labels == ("maybe", "yes", "no")
    assert dataset.classes.of.tolist() == [2, 1, 2]


def test_groups_of_a_column(write):
    rows = [row | {"author": author} for row, author in zip(ROWS, ["Bob", "Ann", 7], strict=True)]
    dataset = open_dataset(write(rows, ROWS), "seq-cls", by="author")
    assert dataset.groups.names == ("Bob", "Ann", "7")
    assert dataset.groups.of.tolist() == [0, 1, 2]
    assert dataset.classes.of.tolist() == [0, 1, 0]


def test_rows_that_are_left_out_have_no_kind(write):
    rows = [{"text": " ", "label": "yes"}, *ROWS, {"text": "x", "label": 9}, {"text": "y", "label": "yes"}]
    authors = ["Ann", "Bob", "", "Ann", "Bob", "Cem"]
    rows = [row | {"author": author} for row, author in zip(rows, authors, strict=True)]
    folder = write(rows, ROWS, ["no", "yes"])
    dataset = open_dataset(folder, "seq-cls", by="author", bad_rows="skip")
    assert [example.text for example in dataset.train] == ["ice", "on it", "y"]
    assert dataset.train.skipped.count == 3
    assert [dataset.groups.names[number] for number in dataset.groups.of] == ["Bob", "Ann", "Cem"]
    assert dataset.classes.of.tolist() == [0, 0, 1]
    with pytest.raises(DataError, match=r"train.jsonl, line 1: text is empty; correct the row, or .*--bad-rows skip"):
        open_dataset(folder, "seq-cls", by="author")


def test_questions(write):
    rows = [
        {"question": "Who?", "context": "Ann, Bob", "answers": {"text": ["Bob", "Ann"], "answer_start": [5, 0]},
         "title": "b", "id": 1},
        {"question": "When?", "context": "Ann", "answers": {"text": [], "answer_start": []}, "title": "a", "id": 2},
    ]  # fmt: skip
    dataset = open_dataset(write(rows, rows[1:]), "qa")
    examples = [Example("Who?", "Ann, Bob", 0, "Bob", 5, ("Bob", "Ann")), Example("When?", "Ann")]
    assert list(dataset.train) == examples
    assert (dataset.labels, dataset.groups.names, dataset.by) == ((), ("b", "a"), "title")
    other = [{"asked": r["question"], "page": r["context"], "answers": r["answers"], "id": r["id"]} for r in rows]
    renamed = open_dataset(write(other, other), "qa", columns=Columns("asked", "page"), by="id")
    assert list(renamed.train) == examples
    assert renamed.groups.names == ("1", "2")


# --- columns ---


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"sentence": "a", "label": 1, "idx": 0}, Columns(), Example("a", None, 1)),
        ({"premise": "a", "hypothesis": "b", "label": 1}, Columns(), Example("a", "b", 1)),
        ({"sentence1": "a", "sentence2": "b", "label": 1}, Columns(), Example("a", "b", 1)),
        ({"question": "a", "sentence": "b", "label": 1}, Columns(), Example("a", "b", 1)),
        ({"question": "a", "passage": "b", "label": 1}, Columns(), Example("b", "a", 1)),
        ({"paragraph": "a", "question": "b?", "answer": "c", "label": 1}, Columns(), Example("a", "b? c", 1)),
        ({"title": "a", "content": "b", "label": 1}, Columns(), Example("a b", None, 1)),
        ({"text": "a", "coarse_label": 1, "fine_label": 40}, Columns(), Example("a", None, 1)),
        (
            {"topic": 1, "question_title": "a", "question_content": "", "best_answer": "c"},
            Columns(),
            Example("a c", None, 1),
        ),
        ({"text": "a", "text_pair": "b", "label": 1}, Columns("text"), Example("a", None, 1)),
        ({"text": "a", "more": "b", "label": 1}, Columns(pair="more"), Example("a", "b", 1)),
        (
            {"head": "a", "body": "b", "stars": 1, "text": "x"},
            Columns("head+body", "", "stars"),
            Example("a b", None, 1),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_columns(tmp_path, row, columns, expected, kind):
    for part in ("train", "test"):
        path = tmp_path / f"{part}.{kind}"
        match kind:
            case "jsonl":
                path.write_text(json.dumps(row) + "\n")
            case "json":
                path.write_text(json.dumps([row], indent=1))
            case "csv":
                write_csv(path, [row])
    dataset = open_dataset(str(tmp_path), "seq-cls", columns=columns, labels=("no", "yes"))
    assert list(dataset.train) == list(dataset.test) == [expected]


def test_a_pair_that_only_some_rows_have(write):
    rows = [{"text": "a", "label": 0}, {"text": "a", "text_pair": "b", "label": 0}]
    assert [example.pair for example in open_dataset(write(rows, rows), "seq-cls").train] == [None, "b"]


# --- what cannot be used ---


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [{"body": "a", "label": 1}],
            {},
            r"no column of a name that texts commonly have; its columns are body, label:",
        ),
        ([{"text": "a", "stars": 1}], {}, r"no column 'label' for the label; its columns are text, stars: say which"),
        (ROWS, {"columns": Columns(pair="more")}, "no column 'more' for the text_pair"),
        (ROWS, {"columns": Columns("text+title")}, "no column 'title' for the text;"),
        (ROWS, {"by": "author"}, r"no column 'author' to split over; its columns are text, label: name another"),
        (ROWS, {"task": "qa"}, "no column 'question' for the question"),
        ([{**ROWS[0], "author": "Ann"}, ROWS[1]], {"by": "author"}, "line 2: has no author, the column to split by"),
        ([{"text": str(i), "label": f"name {i}"} for i in range(1001)], {}, "1,001 different labels; name the column"),
        ([{"text": "a", "label": 1000}], {}, "the label 1000; labels are names, or numbers below 1000"),
        ([], {}, "no row that can be read"),
    ],
)
def test_rows_that_cannot_be_used(write, rows, options, message):
    with pytest.raises(DataError, match=rf"train.jsonl.* {message}"):
        open_dataset(write(rows, ROWS), **{"task": "seq-cls"} | options)


def test_questions_without_titles(write):
    rows = [{"question": "a", "context": "b", "answers": None}]
    with pytest.raises(DataError, match="no column 'title' to split over"):
        open_dataset(write(rows, rows), "qa")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "a JSON list"), ("[1]", "a JSON list"), ("[]", "it has none"), ('["a", "a"]', "it has a, a"), ("\xff", "")],
)
def test_names_of_labels_that_are_none(tmp_path, write, content, message):
    folder = write(ROWS, ROWS)
    (tmp_path / "labels.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=rf"labels.json must .*{message}"):
        open_dataset(folder, "seq-cls")


def test_folders_without_the_files(tmp_path, write):
    folder = write(ROWS, ROWS)
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no test.jsonl or test.csv, which the global model is tested on"):
        open_dataset(folder, "seq-cls")
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no train.jsonl or train.csv with a row for each example"):
        open_dataset(folder, "seq-cls")


# --- Hugging Face ---


def test_the_library_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RuntimeMissing, match=r"'glue:sst2' is no folder .* needs the extra 'hub' ") as caught:
        open_dataset("glue:sst2", "seq-cls")
    assert str(caught.value).endswith(install_command("hub"))


@pytest.fixture
def library():
    found = pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
    found.disable_progress_bars()
    return found


@pytest.fixture
def splits(library):
    """As SNLI and GLUE are published: classes with names, rows of train without a label, a test without any."""
    features = library.Features(
        premise=library.Value("string"),
        hypothesis=library.Value("string"),
        genre=library.Value("string"),
        label=library.ClassLabel(names=["yes", "maybe", "no"]),
    )

    def split(count, labels):
        return library.Dataset.from_dict(
            {
                "premise": [f"premise {i}" for i in range(count)],
                "hypothesis": [f"hypothesis {i}" for i in range(count)],
                "genre": [f"genre {i % 2}" for i in range(count)],
                "label": [labels[i % len(labels)] for i in range(count)],
            },
            features,
        )

    return library.DatasetDict(train=split(12, [2, -1, 0]), test=split(5, [-1]), validation_matched=split(6, [1]))


@pytest.mark.parametrize("kind", ["saved", "tables", "published"])
def test_a_dataset_of_hugging_face(tmp_path, splits, kind):
    if kind == "saved":
        splits.save_to_disk(tmp_path)
    else:
        folder = tmp_path / "data" if kind == "published" else tmp_path
        folder.mkdir(exist_ok=True)
        for name, split in splits.items():
            split.to_parquet(folder / f"{name}-00000-of-00001.parquet")
    dataset = open_dataset(str(tmp_path), "seq-cls", by="genre")
    assert dataset.labels == ("yes", "maybe", "no")
    assert dataset.name == tmp_path.name
    rows = [i for i in range(12) if i % 3 != 1]
    assert list(dataset.train) == [Example(f"premise {i}", f"hypothesis {i}", 2 if i % 3 == 0 else 0) for i in rows]
    assert dataset.classes.of.tolist() == [2 if i % 3 == 0 else 0 for i in rows]
    assert [dataset.groups.names[number] for number in dataset.groups.of] == [f"genre {i % 2}" for i in rows]
    assert list(dataset.test) == [Example(f"premise {i}", f"hypothesis {i}", 1) for i in range(6)]
    assert dataset.fingerprint == open_dataset(str(tmp_path), "seq-cls", by="genre").fingerprint


def test_one_table(tmp_path, splits):
    file = tmp_path / "reviews.parquet"
    splits["test"].to_parquet(file)
    splits["train"].to_parquet(file)
    rows, test = open_rows(str(file))
    assert test is None
    assert [located.row["label"] for located in rows.rows()] == ["no", -1, "yes"] * 4
    assert rows.row(3)["premise"] == "premise 3"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"reviews.parquet is no table of Parquet: "):
        open_rows(str(file))


@pytest.mark.parametrize("rows", [shapes.talk, shapes.instruction])
def test_conversations_and_instructions_of_hugging_face(tmp_path, library, rows):
    rng, template = random.Random(), Template("{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}")
    said = [chats.conversation(rng, turns=1) for _ in range(9)]
    for name, part in (("train", said[:6]), ("test", said[6:])):
        library.Dataset.from_list([rows(messages) for messages in part]).to_parquet(tmp_path / f"{name}.parquet")
    dataset = open_dataset(str(tmp_path), "causal-lm", template=template)
    assert [one.text for one in dataset.train] == [template.render(messages) for messages in said[:6]]
    assert [one.text for one in dataset.test] == [template.render(messages) for messages in said[6:]]
    found = columns_in(first_rows(open_rows(str(tmp_path)).train), Columns(), None, "rows")
    assert (found.task, found.guessed) == ("causal-lm", False)


def test_questions_of_hugging_face(tmp_path, library):
    rows = [
        {"id": "1", "title": "a", "context": "It is Ann.", "question": "Who?",
         "answers": {"text": ["Ann", "is Ann"], "answer_start": [6, 3]}},
        {"id": "2", "title": "b", "context": "It is.", "question": "Who?", "answers": {"text": [], "answer_start": []}},
    ]  # fmt: skip
    split = library.Dataset.from_list(rows)
    library.DatasetDict(train=split, validation=split).save_to_disk(tmp_path)
    dataset = open_dataset(str(tmp_path), "qa")
    assert list(dataset.train) == [
        Example("Who?", "It is Ann.", 0, "Ann", 6, ("Ann", "is Ann")),
        Example("Who?", "It is."),
    ]
    assert dataset.groups.names == ("a", "b")


def test_datasets_without_what_is_needed(tmp_path, splits):
    del splits["validation_matched"]
    splits.save_to_disk(tmp_path / "unlabelled")
    with pytest.raises(
        DataError, match=r"has the splits train, test; expected one of test, validation, .* with labels"
    ):
        open_dataset(str(tmp_path / "unlabelled"), "seq-cls")
    del splits["train"]
    splits.save_to_disk(tmp_path / "test")
    with pytest.raises(DataError, match="has the splits test; expected train"):
        open_dataset(str(tmp_path / "test"), "seq-cls")


@pytest.mark.usefixtures("library")
def test_a_name_that_is_nothing():
    with pytest.raises(DataError, match=r"'none/such:x' is neither a folder with train.jsonl .* nor a dataset of Hugg"):
        open_dataset("none/such:x", "seq-cls")

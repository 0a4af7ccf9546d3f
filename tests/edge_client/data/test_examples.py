import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.data.examples import Example, examples_for
from edge_client.data.sources import LONGEST_LINE, count_rows, open_data
from edge_client.errors import DataError
from edge_client.tasks.classification import Classification
from edge_client.tasks.registry import TASK_TYPES

LABELS = ("no", "yes")
CLASSES = Classification()


def load(data, kind=CLASSES, labels=LABELS, **options):
    return examples_for(open_data(data), kind.check(labels), **options)


def write(folder, content, name="my.jsonl"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# --- what is read ---


def test_jsonl(tmp_path):
    rows = [{"text": "Eis", "label": "yes"}, {"text": "ice", "text_pair": "snöw", "label": 0, "id": 7}]
    path = write(tmp_path, "\ufeff" + lines(rows[0]) + "\n \n" + lines(rows[1]).rstrip())
    found = load(path)
    assert list(found) == [Example("Eis", None, 1), Example("ice", "snöw", 0)]
    assert found[1:] is not found
    assert list(found[1:]) == [Example("ice", "snöw", 0)]
    assert found.skipped.count == 0
    assert count_rows(open_data(path)) == 2


def test_csv_with_quoted_lines_and_numbers(tmp_path):
    path = write(tmp_path, 'text,label,text_pair\r\n"two\nlines, a comma",yes,\r\nplain,0,pair\r\n\r\n', "my.CSV")
    found = load(path)
    assert list(found) == [Example("two\nlines, a comma", None, 1), Example("plain", "pair", 0)]
    assert [found[1], found[0], found[1]][0].pair == "pair"


def test_an_iterable():
    found = load({"text": t, "label": "no"} for t in "ab")
    assert [example.text for example in found] == ["a", "b"]
    assert load([Example("c", None, 1)._asdict()])[0] == Example("c", None, 1)


# --- what is refused ---


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": "a", "label": "maybe"}', r"unknown label 'maybe'; the job's labels are no, yes \(or 0 to 1\)"),
        ('{"text": "a"}', "has no label; its fields are text"),
        ('{"label": 1, "txt": "a"}', "has no text; its fields are label, txt"),
        ('{"text": 3, "label": 1}', "text must be a text, got int"),
        ('{"text": " ", "label": 1}', "text is empty"),
        ('["a", 1]', "expected an object"),
        ('{"text": "a", ', "is not JSON"),
        ("[" * 5000, "is not JSON"),
        (b'{"text": "\xff\xfe", "label": 1}', "is not UTF-8: byte 11 is 0xff"),
        (b'{"text": "a\xc3', "is not UTF-8"),
    ],
)
def test_a_bad_row_is_named_or_skipped(tmp_path, row, message):
    row = row if isinstance(row, bytes) else row.encode()
    good = b'{"text": "fine", "label": 1}\n'
    path = write(tmp_path, good + row + b"\n" + good)
    with pytest.raises(DataError, match=f"my.jsonl, line 2: .*{message}.*--bad-rows skip"):
        load(path)
    found = load(path, bad_rows="skip")
    assert [example.text for example in found] == ["fine", "fine"]
    assert found.skipped.count == 1
    assert str(found.skipped).startswith("line 2: ")


def test_half_a_surrogate_pair():
    with pytest.raises(DataError, match="row 1: text holds half of a surrogate pair"):
        load([{"text": "a\ud800", "label": 1}])


@pytest.mark.parametrize("name", ["my.jsonl", "my.csv"])
def test_a_long_line_is_never_held_whole(tmp_path, name):
    good = '{"text": "fine", "label": 1}\n' if name.endswith("l") else "fine,1\n"
    header = "" if name.endswith("l") else "text,label\n"
    path = write(tmp_path, header + good + "x" * 10_000_000 + "\n" + good, name)
    number = 2 + bool(header)
    tracemalloc.start()
    with pytest.raises(DataError, match=f"line {number}: is longer than {LONGEST_LINE:,} bytes"):
        load(path)
    found = load(path, bad_rows="skip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [example.text for example in found] == ["fine", "fine"]
    assert peak < 6 * LONGEST_LINE


def test_many_bad_rows_are_told_in_short():
    found = load([{"text": "a", "label": 1}, *[{"text": "b"}] * 9], bad_rows="skip")
    assert found.skipped.count == 9
    assert str(found.skipped).count("has no label") == 3
    assert str(found.skipped).endswith("; and 6 more")


EMPTY = [("", "a.jsonl"), ("\n\n", "a.jsonl"), ("", "a.csv"), ("text,label\n", "a.csv")]


@pytest.mark.parametrize(("content", "name"), EMPTY)
def test_an_empty_file(tmp_path, content, name):
    with pytest.raises(DataError, match=f"{name} has no example; it is empty"):
        load(write(tmp_path, content, name))


def test_nothing_is_left(tmp_path):
    with pytest.raises(DataError, match=r"no example: all 1 rows were left out .line 1: is not JSON"):
        load(write(tmp_path, "nonsense"), bad_rows="skip")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"does not exist; give a .jsonl or .csv file"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is not a file"):
        load(tmp_path)


def test_csv_without_a_header(tmp_path):
    with pytest.raises(DataError, match=r"line 1: expected a header with the columns text and label .* got fine, yes"):
        load(write(tmp_path, "fine,yes\n", "my.csv"))


def test_csv_rows_of_another_width_and_open_quotes(tmp_path):
    path = write(tmp_path, 'text,label\nfine,yes\na,b,c\n"open,yes\nfine,no\n', "my.csv")
    with pytest.raises(DataError, match="line 3: has 3 values, the header 2"):
        load(path)
    assert [e.text for e in load(path, bad_rows="skip")] == ["fine"]


def test_a_file_that_changes_under_training(tmp_path):
    path = write(tmp_path, lines({"text": "one", "label": 1}, {"text": "two", "label": 1}))
    found = load(path)
    write(tmp_path, lines({"text": "ten", "label": 1}, {"text": "two", "label": 1}))
    assert found[1].text == "two"
    with pytest.raises(DataError, match="changed while it was in use"):
        found[0]
    write(tmp_path, "")
    with pytest.raises(DataError, match="changed while it was in use"):
        found[1]


@given(st.binary(max_size=400), st.sampled_from(["jsonl", "csv"]), st.sampled_from([*TASK_TYPES.values()]))
def test_hostile_bytes_end_in_a_message(tmp_path_factory, content, ending, kind):
    header = b"text,label,question,context,answers\n" if ending == "csv" else b""
    path = write(tmp_path_factory.getbasetemp(), header + content, f"hostile.{ending}")
    for bad_rows in ("refuse", "skip"):
        with suppress(DataError):
            assert all(example.text for example in load(path, kind, bad_rows=bad_rows))


# --- parts ---


def rows(count, start=0):
    return [{"text": f"text {i}", "label": i % 2} for i in range(start, start + count)]


def test_rows_held_back_are_decided_by_their_content():
    train, held = load(rows(400)).split(0.25)
    assert len(train) + len(held) == 400
    assert 70 < len(held) < 130
    texts = {example.text for example in held}
    assert not texts & {example.text for example in train}
    more = load(list(reversed(rows(800)))).split(0.25)[1]
    assert texts <= {example.text for example in more}
    assert {example.text for example in load(rows(400)).split(0.25, seed=1)[1]} != texts


@pytest.mark.parametrize(("count", "holdout", "expected"), [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (5, 0.0, 0)])
def test_each_part_has_an_example(count, holdout, expected):
    train, held = load(rows(count)).split(holdout)
    assert (len(train), len(held)) == (count - expected, expected)


def test_a_share_out_of_range():
    with pytest.raises(DataError, match="from 0 to less than 1, got 1"):
        load(rows(2)).split(1.0)


def test_fingerprints_tell_rows_apart():
    assert load(rows(3)).fingerprint == load(rows(3)).fingerprint
    assert load(rows(3)).fingerprint != load(rows(3, start=1)).fingerprint
    assert load(rows(3)).fingerprint != load(rows(3)[::-1]).fingerprint

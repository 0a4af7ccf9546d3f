"""JSON lists in files, a value at a time."""

import json
import random

import pytest

from edge_client.data import sources
from edge_client.data.examples import examples_for
from edge_client.data.sources import LONGEST_LINE, ListSource, open_data
from edge_client.errors import DataError
from edge_client.tasks.registry import TASK_TYPES

CHECK = TASK_TYPES["causal-lm"].check(())
PIECES = ['"', "\\", "[", "]", "{", "}", ",", "\n", "é", "🙂", "a", " ", "\\u0041", "[{", '"]']


def value(rng: random.Random, depth: int = 3):
    if depth == 0 or rng.random() < 0.4:
        return rng.choice(["".join(rng.choices(PIECES, k=rng.randint(0, 6))), rng.random(), None, True, -3])
    if rng.random() < 0.5:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {str(value(rng, 0)): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 16])
def test_rows_are_those_of_the_list(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(sources, "_CHUNK", chunk)
    rng, path = random.Random(), tmp_path / "a.json"
    for _ in range(30):
        rows = [{"row": value(rng), "more": value(rng)} for _ in range(rng.randint(1, 6))]
        text = json.dumps(rows, indent=rng.choice([None, 0, 2]), ensure_ascii=rng.random() < 0.5)
        path.write_text(rng.choice(["", "\ufeff", " \n"]) + text + rng.choice(["", "\n"]))
        source = ListSource(path)
        found = list(source.rows())
        assert [one.row for one in found] == rows
        assert [one.place for one in found] == [f"row {number + 1}" for number in range(len(rows))]
        assert [source.row(one.at) for one in reversed(found)] == rows[::-1]


def test_values_that_are_no_rows_are_told_with_their_number(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(
        '[{"text": "a"}, 7, {"text": b}, {"text": "' + "c" * LONGEST_LINE + '"}, {"text": "d"}, {"text": "e'
    )
    told = [(one.place, one.problem) for one in open_data(path).rows() if one.row is None]
    assert [place for place, _ in told] == ["row 2", "row 3", "row 4", "row 6", "the end"]
    why = "got int", "is not JSON", "is longer than", "is not JSON", "closes"
    for (_, problem), words in zip(told, why, strict=True):
        assert words in problem
    with pytest.raises(DataError, match=r"a\.json, row 2: expected an object"):
        examples_for(open_data(path), CHECK)
    assert [one.text for one in examples_for(open_data(path), CHECK, bad_rows="skip")] == ["a", "d"]


@pytest.mark.parametrize("rest", ["", " \n", '{"text": "b"}', '{"text": "b'])
def test_a_list_that_ends_early_is_told(tmp_path, rest):
    path = tmp_path / "a.json"
    path.write_text('[{"text": "a"},' + rest)
    told = [(one.place, one.problem) for one in open_data(path).rows() if one.row is None]
    assert told[-1] == ("the end", "nothing closes the list: the file may be cut off")
    assert len(told) == 1 + rest.endswith("b")


def test_a_list_is_one_whatever_its_file_is_called(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('[{"text": "a"},\n{"text": "b"}]')
    assert [one.text for one in examples_for(open_data(path), CHECK)] == ["a", "b"]


def test_a_json_file_may_have_lines_too(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"text": "a"}\n{"text": "[b]"}\n')
    assert [one.text for one in examples_for(open_data(path), CHECK)] == ["a", "[b]"]
    path.write_text(" [ ] ")
    with pytest.raises(DataError, match="has no example; it is empty"):
        examples_for(open_data(path), CHECK)

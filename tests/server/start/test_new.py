"""`spry new` on files as people have them."""

import csv
import json
import random
import shutil
from types import SimpleNamespace

import msgspec
import pytest

from edge_client.commands import cli
from edge_client.data.examples import examples_for
from edge_client.data.sources import open_data
from edge_client.data.templates import Template
from edge_client.tasks.registry import task_named
from server.project.file import read
from server.start.choice import ENCODER, Reading, remarks
from server.start.survey import Columns, surveyed
from tests import shapes
from tests.tickets import TOPICS, table, tickets


@pytest.fixture
def new(tmp_path, monkeypatch, capsys, model_folder):
    """Runs the command in an empty folder; by a small model, unless another is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*args):
        capsys.readouterr()
        named = () if "--model" in args else ("--model", str(model_folder))
        code = cli.run(["new", "mine", *map(str, args), *named])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err, file=tmp_path / "mine" / "spry.toml")

    return run


def found(new, *args):
    done = new(*args, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_columns_are_known_by_their_usual_names(new, tmp_path):
    path = table(tmp_path / "a.csv", ("id", "sentence", "category"), [(i, *row) for i, row in enumerate(tickets())])
    told = found(new, "--data", path)
    assert told["columns"] == {"text": "sentence", "label": "category"}
    assert told["classes"] == dict.fromkeys(told["classes"], 20)
    assert told["classes"].keys() == set(TOPICS)
    assert told["majority"] == pytest.approx(1 / 3, abs=1e-4)
    assert told["train"] + told["held_out"] == 60
    assert [line for line in told["remarks"] if "have more than" not in line] == []  # the model reads 32


def test_rows_of_the_project_have_the_names_that_devices_read(new, tmp_path):
    rows = list(tickets())
    found(new, "--data", table(tmp_path / "a.csv", ("sentence", "category"), rows))
    parts = [(tmp_path / "mine" / "data" / name).read_text().splitlines() for name in ("train.jsonl", "held-out.jsonl")]
    written = [json.loads(line) for part in parts for line in part]
    assert sorted((row["text"], row["label"]) for row in written) == sorted(rows)
    assert min(map(len, parts)) > 0


def test_columns_of_other_names_are_told_by_what_stands_in_them(new, tmp_path):
    rows = [(i, f"2026-01-{i % 28 + 1:02}", text, topic) for i, (text, topic) in enumerate(tickets())]
    told = found(new, "--data", table(tmp_path / "a.csv", ("nr", "day", "was_er_schrieb", "art"), rows))
    assert told["columns"] == {"text": "was_er_schrieb", "label": "art"}
    assert any("taken by what stands in them" in line for line in told["remarks"])


@pytest.mark.parametrize("paired", [False, True])
def test_an_encoder_of_sentences_begins_with_its_mean_where_rows_are_single_texts(new, model_folder, tmp_path, paired):
    folder = tmp_path / "encoder"
    shutil.copytree(model_folder, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    rows = [{"text": text, "label": topic} | ({"text_pair": "a b c"} if paired else {}) for text, topic in tickets()]
    done = new("--data", lines(tmp_path, rows), "--model", folder)
    assert done.code == 0, done.err
    assert ("--from-mean" in read(done.file).model.options) != paired


def test_columns_can_be_named(new, tmp_path):
    rows = [(text, "x y z w v u", topic, "a" if i % 2 else "b") for i, (text, topic) in enumerate(tickets())]
    path = table(tmp_path / "a.csv", ("one", "two", "topic", "side"), rows)
    assert found(new, "--data", path, "--text", "one+two", "--label", "side")["classes"].keys() == {"a", "b"}


@pytest.mark.parametrize(("count", "few"), [(60, True), (1500, False)])
def test_all_blocks_learn_where_rows_are_few(new, tmp_path, count, few):
    told = found(new, "--data", table(tmp_path / "a.csv", ("text", "label"), tickets(count)))
    assert (told["train"] <= 1000) == few
    assert told["job"]["preset"] == ""
    options = [*zip(told["model"]["options"][::2], told["model"]["options"][1::2], strict=True)]
    assert options == ([("--last-blocks", "0"), ("--rank", "8"), ("--alpha", "16")] if few else [])


def test_the_file_says_what_was_chosen_and_can_be_read_again(new, tmp_path, model_folder):
    done = new("--data", table(tmp_path / "a.csv", ("text", "label"), tickets()))
    assert done.code == 0, done.err
    file = read(done.file)
    assert file.model.labels == tuple(sorted(TOPICS))
    assert file.model.source == str(model_folder)
    assert file.job.name == "mine"
    assert "# " in done.file.read_text()
    assert "spry up" in done.out
    assert "billing (20)" in done.out


def test_the_length_takes_most_rows_whole(new, tmp_path, model_folder):
    rows = [(" ".join(["it"] * (number % 25 + 1)), TOPICS[number % 3]) for number in range(200)]
    told = found(new, "--data", table(tmp_path / "a.csv", ("text", "label"), rows))
    counts = sorted(Reading(str(model_folder)).count([text for text, _ in rows]))
    length = told["model"]["length"]
    assert length % 8 == 0
    assert sum(count <= length for count in counts) >= 0.95 * len(counts)
    assert told["longest"] == counts[-1]


def test_broken_repeated_and_contradicting_rows_are_told(new, tmp_path):
    lines = [json.dumps({"text": text, "label": topic}) for text, topic in tickets(60)]
    lines += [lines[0], json.dumps({"text": json.loads(lines[1])["text"], "label": "billing"})]
    lines += ["no json", json.dumps({"text": "", "label": "billing"})]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    told = found(new, "--data", path)
    assert (told["repeated"], told["contradicted"], told["left_out"]) == (2, 1, 2)
    assert any("line 63: is not JSON" in line for line in told["remarks"])


def test_a_folder_for_each_class(new, tmp_path):
    for number, (text, topic) in enumerate(tickets(30)):
        folder = tmp_path / "texts" / topic.split(",")[0]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text(text)
    (tmp_path / "texts" / "billing" / "bad.txt").write_bytes(b"\xff\xfe")
    told = found(new, "--data", tmp_path / "texts")
    assert told["classes"] == {"billing": 10, "delivery": 10, "praise": 10}
    assert told["left_out"] == 1


def test_a_part_to_test_on_is_held_out_as_it_is(new, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, count in (("train", 50), ("test", 7)):
        rows = [{"text": text, "label": topic} for text, topic in tickets(count, seed=count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = found(new, "--data", folder)
    assert (told["train"], told["held_out"]) == (50, 7)


def test_texts_alone_are_for_a_language_model(new, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in tickets()))
    told = found(new, "--data", path)
    assert told["model"]["task"] == "causal-lm"
    assert told["model"]["labels"] == []
    assert "--generate" in told["model"]["options"]


def test_a_models_folder_is_found_from_the_project_too(tmp_path, model_folder, monkeypatch, capsys):
    monkeypatch.chdir(model_folder.parent)
    rows = table(tmp_path / "a.csv", ("text", "label"), tickets())
    assert cli.run(["new", str(tmp_path / "mine"), "--data", str(rows), "--model", model_folder.name]) == 0
    assert read(tmp_path / "mine" / "spry.toml").model.source == str(model_folder)


def test_what_is_learned_of_conversations_is_said(new, tmp_path):
    pairs = lines(tmp_path, [{"prompt": text, "completion": topic} for text, topic in tickets()])
    told = new("--data", pairs).out
    assert "taken for: prompts with their completions" in told
    assert "learned: completions; prompts are read alone" in told


@pytest.mark.parametrize(
    ("header", "rows", "problem"),
    [
        (("text", "label"), [("one", "a"), ("two", "a")], "is all of one class, 'a'"),
        (("text", "label"), [], "has no row that can be read"),
        (("a", "b"), [("one", "2"), ("two", "3")], "has no column that looks like the texts"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_anything_is_written(new, tmp_path, header, rows, problem):
    done = new("--data", table(tmp_path / "a.csv", header, rows))
    assert done.code == 2
    assert problem in done.err
    assert not done.file.parent.exists()
    assert not list(tmp_path.glob(".mine*"))


@pytest.mark.parametrize(
    ("rows", "field", "taken_for", "learned"),
    [
        (
            shapes.instructions,
            "output",
            "questions with their answers: instruction",
            "answers; what is asked is read alone",
        ),
        (
            shapes.talks,
            "conversations",
            "conversations, from conversations",
            "the assistant's answers, each with what ends it",
        ),
    ],
)
def test_rows_of_other_programs_are_known(new, tmp_path, talker_folder, rows, field, taken_for, learned):
    made = [row for row, *_ in rows(random.Random(), 60, field)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(made, indent=2))
    done = new("--data", path, "--model", talker_folder)
    assert done.code == 0, done.err
    assert f"  taken for: {taken_for}" in done.out
    assert f"  learned: {learned}" in done.out
    file = read(done.file)
    assert "no rates to set: devices walk by themselves" in done.out
    assert (file.model.task, file.model.labels) == ("causal-lm", ())
    assert "--generate" in file.model.options
    check = task_named("causal-lm").check((), Template.beside(talker_folder))
    parts = (examples_for(open_data(path), check) for path in (done.file.parent / "data").iterdir())
    assert sorted(one.text for part in parts for one in part) == sorted(check(row).text for row in made)


@pytest.mark.parametrize(("between", "name"), [(";", "a.csv"), ("\t", "a.csv"), ("\t", "a.tsv")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_tables_of_other_countries_and_programs(new, tmp_path, between, name, encoding):
    rows = [("text", "label"), *((f"{text}, really; yes", topic) for text, topic in tickets())]
    with (tmp_path / name).open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=between).writerows(rows)
    told = found(new, "--data", name)
    assert told["classes"].keys() == set(TOPICS)
    assert (told["rows"], told["left_out"]) == (60, 0)


@pytest.mark.parametrize(
    ("encoding", "told_as"), [("cp1252", "Windows-1252"), ("latin-1", "Windows-1252"), ("utf-16", "UTF-16")]
)
def test_tables_that_are_not_utf_8(new, tmp_path, encoding, told_as):
    rows = [("text", "label"), *((f"{text}, déjà vu", f"«{topic}»") for text, topic in tickets())]
    with (tmp_path / "a.csv").open("w", newline="", encoding=encoding) as file:
        csv.writer(file).writerows(rows)
    told = found(new, "--data", "a.csv")
    assert told["classes"].keys() == {f"«{topic}»" for topic in TOPICS}
    assert any(line.startswith(f"read as {told_as}, as it is not UTF-8") for line in told["remarks"])


def test_fields_of_objects_within_rows(new, tmp_path):
    rows = [{"ticket": {"body": text, "id": i}, "meta": {"team": topic}} for i, (text, topic) in enumerate(tickets())]
    told = found(new, "--data", lines(tmp_path, rows))
    assert told["columns"] == {"text": "ticket.body", "label": "meta.team"}
    assert sum(told["classes"].values()) == 60


def test_labels_that_are_true_or_false(new, tmp_path):
    rows = [{"text": text, "label": topic == "billing"} for text, topic in tickets()]
    assert found(new, "--data", lines(tmp_path, rows))["classes"] == {"false": 40, "true": 20}


def test_numbers_as_labels_stay_what_they_are(new, tmp_path):
    rows = [{"text": text, "label": {"billing": 3, "delivery": 7}.get(topic, 10)} for text, topic in tickets()]
    told = found(new, "--data", lines(tmp_path, rows))
    assert told["classes"] == {"3": 20, "7": 20, "10": 20}
    assert told["model"]["labels"][7] == "7"
    assert "classes are numbers: the model has 0 to 10, of which 8 have no row" in told["remarks"]
    assert not any("hardly enough" in line for line in told["remarks"])


def test_rows_that_are_longer_than_any_device_reads(new, tmp_path):
    rows = [(text + " tea" * 400, topic) for text, topic in tickets()]
    told = found(new, "--data", table(tmp_path / "a.csv", ("text", "label"), rows))
    assert any("100% of the rows have more than" in line for line in told["remarks"])


def test_a_project_is_replaced_where_that_is_asked_for(new, tmp_path):
    rows = table(tmp_path / "a.csv", ("text", "label"), tickets())
    assert new("--data", rows).code == 0
    again = new("--data", rows)
    assert (again.code, "pass --overwrite to replace it" in again.err) == (2, True)
    fewer = table(tmp_path / "b.csv", ("text", "label"), tickets(30))
    assert new("--data", fewer, "--overwrite").code == 0
    assert len((tmp_path / "mine" / "data" / "train.jsonl").read_text().splitlines()) < 30
    (tmp_path / "mine" / "server").mkdir()
    assert "has a server that devices may know" in new("--data", rows, "--overwrite").err
    (tmp_path / "mine" / "spry.toml").unlink()
    assert "is no project, so --overwrite will not replace it" in new("--data", rows, "--overwrite").err


def test_too_few_rows_to_hold_any_out_are_refused_before_anything_is_written(new, tmp_path):
    done = new("--data", table(tmp_path / "a.csv", ("text", "label"), [("late again", "a"), ("lost it", "b")]))
    assert (done.code, "too few to hold any out to measure on" in done.err) == (2, True)
    assert not done.file.parent.exists()


def test_a_class_of_one_row_is_told(new, tmp_path):
    rows = [*tickets(), ("a word about tea", "praise")]
    told = found(new, "--data", table(tmp_path / "a.csv", ("text", "label"), rows))
    assert any(line.startswith("a single row of praise: learned from or measured on") for line in told["remarks"])


def test_what_is_proposed_next_can_be_run(new, tmp_path):
    done = new("--data", table(tmp_path / "a.csv", ("text", "label"), tickets(6)))
    rows = len((done.file.parent / "data" / "train.jsonl").read_text().splitlines())
    assert f"spry up --try {rows // 2} " in done.out


def test_conversations_without_a_model_are_told_that_one_has_to_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines(tmp_path, [{"messages": said}] * 3)
    assert cli.run(["new", "mine", "--data", "a.jsonl"]) == 2
    assert "these rows are for a language model, which has to be named: give --model" in capsys.readouterr().err


def lines(folder, rows):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


NO_HEADER = b"late again,delivery\n" + b"".join(
    b"lost it %d times,%s\n" % (i, [b"delivery", b"billing"][i % 2]) for i in range(20)
)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'text,label\n"open,a\nb,c\n', 'line 2: has a " that is never closed'),
        (NO_HEADER, "begins with a row"),
        (
            b"text,label\n\xc3\xa9t\xc3\xa9,a\n" + b"".join(b"lost %d\xe9,b\nlate %d,a\n" % (i, i) for i in range(20)),
            "name their column (--label); 20 of its rows cannot be read: line 3 is not UTF-8: byte",
        ),
    ],
    ids=["an open quote", "no header", "one class in broken lines"],
)
def test_what_is_wrong_with_a_table(new, tmp_path, content, problem):
    (tmp_path / "a.csv").write_bytes(content)
    done = new("--data", "a.csv")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert problem in done.err


def test_classes_that_are_lists(new, tmp_path):
    done = new("--data", lines(tmp_path, [{"text": text, "label": [topic]} for text, topic in tickets()]))
    assert "without classes (label holds list)" in done.err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--data", "gone.csv"), "gone.csv does not exist"),
        (("--data", "a.xlsx"), "a.xlsx is neither .jsonl, .json, .csv nor .parquet"),
        (("--data", "a.json"), "a.json has no row that can be read; give a row for each example"),
        (("--data", "a.csv", "--text", "nothing"), "has no column 'nothing'"),
        (("--data", "a.csv", "--task", "poetry"), "unknown task 'poetry'"),
        (("--data", "a.csv", "--model", "models/none"), "is no folder and no GGUF file"),
    ],
)
def test_wrong_use_is_one_line(new, tmp_path, args, problem):
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "models").mkdir()
    table(tmp_path / "a.csv", ("text", "label"), tickets())
    done = new(*args)
    assert done.code == 2
    assert problem in done.err
    assert done.err.count("\n") == 1


def test_a_folder_that_is_there_is_left_alone(new, tmp_path):
    (tmp_path / "mine").mkdir()
    done = new("--data", table(tmp_path / "a.csv", ("text", "label"), tickets()))
    assert (done.code, "mine exists" in done.err) == (2, True)


def test_the_package_reads_english(tmp_path):
    """What the encoder that comes as a package is told of texts in other letters."""
    path = tmp_path / "a.jsonl"
    rows = ({"text": f"привет мир номер {i}", "label": "да" if i % 2 else "нет"} for i in range(40))
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    survey = surveyed(str(path), Columns(), None, lambda texts: [5] * len(texts))
    assert any("not English" in line for line in remarks(survey, ENCODER))
    assert not any("not English" in line for line in remarks(survey, "some/model"))

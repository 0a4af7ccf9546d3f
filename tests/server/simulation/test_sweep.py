"""benchmarks/paper.py: the commands that it would run, and what it keeps of a run."""

import json
import shutil
from pathlib import Path

import pytest

from edge_client.commands.cli import installed, load
from server.simulation.compare.runs import find_runs
from server.simulation.methods.methods import check_method
from tests.benchmarks import script
from tests.warm import python

tables, rates, paper = script("tables"), script("rates"), script("paper")
SIMULATE = load(installed()["simulate"])


def test_no_run_stands_in_anothers_folder():
    made = {run for table in tables.TABLES.values() for run in table()}  # a table may show another's
    assert len({run.folder(Path("runs"), 0) for run in made}) == len(made)


@pytest.mark.parametrize("table", tables.TABLES)
def test_simulate_takes_the_commands(table):
    for run in tables.TABLES[table]():
        command, *words = run.command(Path("runs"), 2, "float32")
        assert command == "simulate"
        given = SIMULATE.make_context(command, words).params  # unknown options and words would be refused
        assert (given["seed"], given["arithmetic"]) == (2, "float32")
        check_method(given["method"], json.loads(given["settings"] or "{}"))


def short(model_folder, data, folder):
    """A simulation that takes seconds."""
    return [
        "simulate", "--model", str(model_folder), "--data", str(data), "--examples", str(data / "train.jsonl"),
        "--clients", "4", "--per-round", "2", "--rounds", "2", "--iterations", "1", "--length", "8",
        "--out", str(folder),
    ]  # fmt: skip


# --- rates ---


@pytest.fixture
def tuned():
    return next(run for run in tables.defaults_table() if run.method == "fedavg")


def test_every_method_that_is_compared_tries_as_many_rates():
    """And no default is tuned."""
    runs = list(tables.defaults_table())
    assert {run.method for run in runs if run.tuned} == {"fedavg", "fedmezo"}
    assert {run.method for run in runs if not run.tuned} == {"spry", "classifier"}
    for run in runs:
        assert len(list(rates.trials([run]))) == (len(rates.FACTORS) if run.tuned else 0)


def test_trials_see_no_test_data(tuned):
    (trial, *_) = rates.trials([tuned])
    command = trial.command(Path("out"), rates.SEED, "float32")
    assert f"out/held-back/{tuned.data}" in command
    assert trial.folder(Path("out"), 0) != tuned.folder(Path("out"), 0)
    assert command[-6:-2] == ["--set", "training.learning_rate=0.0009", "--set", "training.head_learning_rate=0.0009"]


@pytest.mark.parametrize(
    ("reached", "rate"),
    [((0.5, 0.6, 0.7, 0.2), 0.009), ((0.5, 0.7, 0.7, 0.2), 0.003), ((0.4, 0.4, 0.4, 0.4), 0.003)],
    ids=["the best", "of two equals", "where none has learned yet"],
)
def test_the_rate_is_the_one_that_got_farthest_and_of_equals_the_usual_one(reached, rate, tuned, tmp_path):
    for factor, accuracy in zip(rates.FACTORS, reached, strict=True):
        assert rates.chosen(tuned, tmp_path) is None
        record = rates.trial(tuned, factor).folder(tmp_path, rates.SEED)
        record.mkdir(parents=True)
        (record / "summary.json").write_text(json.dumps({"accuracy": accuracy}))
    ready = rates.chosen(tuned, tmp_path)
    assert ready.options[-1] == f"training.head_learning_rate={rate}"
    assert ready.folder(tmp_path, 0) == tuned.folder(tmp_path, 0)


def test_differences_of_losses_are_taken_in_float32():
    (run, *_) = (run for run in tables.defaults_table() if run.method == "fedmezo")
    given = SIMULATE.make_context("simulate", run.command(Path("out"), 0, "bfloat16")[1:]).params
    assert (given["arithmetic"], given["differences"]) == ("float32", "taken")


def test_held_back_rows_are_no_clients(tmp_path):
    (tmp_path / "data" / "notes").mkdir(parents=True)
    rows = [f'{{"text": "{number}", "label": 0}}\n' for number in range(50)]
    (tmp_path / "data" / "notes" / "train.jsonl").write_text("".join(rows))
    (tmp_path / "data" / "notes" / "test.jsonl").write_text('{"text": "secret", "label": 0}\n')
    paper.prepare(tmp_path / "data", tmp_path / "out", "held-back", "notes")
    folder = tmp_path / "out" / "held-back" / "notes"
    train, test = ((folder / name).read_text().splitlines(keepends=True) for name in ("train.jsonl", "test.jsonl"))
    assert (len(train), len(test)) == (45, 5)
    assert set(train) | set(test) == set(rows)


# --- what is run, and kept ---


@pytest.fixture(autouse=True)
def _begun(monkeypatch):
    """Commands begin with their libraries loaded."""
    monkeypatch.setattr(paper, "SPRY", [python(), *paper.SPRY[1:]])


def test_a_run_that_ended_is_not_run_again_and_stands_in_its_own_tables_report(
    model_folder, writing, tmp_path, monkeypatch
):
    shown, other = (tables.Run("main", "notes", "spry", 1.0, name=name) for name in ("shown", "other"))
    monkeypatch.setattr(paper, "TABLES", {"free": lambda: iter([shown])})
    out = tmp_path / "out"
    paper.report("free", paper.MODEL, out)
    assert not out.exists()  # nothing has run
    folder = shown.folder(out, 0)
    command = short(model_folder, writing(), folder)
    assert paper.simulate(command, folder, 1).startswith("done  "), folder.with_suffix(".log").read_text()
    assert paper.simulate(command, folder, 1).startswith("done before  ")
    (run,) = find_runs([out])
    assert (len(run.rounds), run.summary is not None) == (2, True)
    shutil.copytree(folder, other.folder(out, 1))  # twice one seed would be refused
    paper.report("free", paper.MODEL, out)
    assert "1 run in 1 row" in (out / "reports" / "free.md").read_text()


def test_a_run_that_fails_is_told(model_folder, tmp_path):
    folder = tmp_path / "run"
    command = ["simulate", "--model", str(model_folder), "--data", str(tmp_path / "nowhere"), "--out", str(folder)]
    assert paper.simulate(command, folder, 1).startswith("FAILED")


def test_a_missing_data_set_is_told(tmp_path):
    with pytest.raises(SystemExit, match=r"nowhere/sst2/train\.jsonl does not exist; --data takes a folder"):
        paper.prepare(tmp_path / "nowhere", tmp_path / "out", "data", "sst2")
    assert not (tmp_path / "out").exists()

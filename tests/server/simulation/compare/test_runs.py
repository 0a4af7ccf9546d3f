import json

import pytest

from server.simulation.compare.runs import RunError, find_runs, read_run
from tests.server.simulation.conftest import config, rounds, write_run


def test_a_run_is_read_as_it_was_written(tmp_path):
    lines = rounds(every=5)
    run = read_run(write_run(tmp_path / "run", config("fedavg", 3), lines, peak=123))
    assert (run.config.method, run.config.seed, run.config.data.classes) == ("fedavg", 3, 4)
    assert run.config.settings["training"]["estimator"] == "exact"
    assert run.summary.peak_bytes == 123
    assert run.points("seconds").to_dict() == {line["round"]: line["seconds"] for line in lines}
    assert run.points("accuracy").to_dict() == {n: lines[n - 1]["accuracy"] for n in (5, 10, 15, 20)}
    assert run.points("f1").empty


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_being_written_does_not_count(tmp_path, cut):
    lines = rounds(4)
    folder = write_run(tmp_path / "run", config(), lines, peak=None)
    text = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(text + json.dumps(lines[-1] | {"round": 5})[:cut])
    run = read_run(folder)
    assert list(run.rounds.index) == [1, 2, 3, 4]
    assert run.summary is None


def test_a_whole_last_line_counts_without_its_end(tmp_path):
    folder = write_run(tmp_path / "run", config(), rounds(4))
    file = folder / "rounds.jsonl"
    file.write_text(file.read_text().removesuffix("\n"))
    assert len(read_run(folder).rounds) == 4


def test_a_summary_that_was_being_written_does_not_count(tmp_path):
    folder = write_run(tmp_path / "run", config(), rounds(4))
    (folder / "summary.json").write_text('{"accuracy": 0.')
    assert read_run(folder).summary is None


def test_a_round_that_was_repeated_counts_as_it_was_last_written(tmp_path):
    lines = rounds(4)
    again = lines[2] | {"accuracy": 0.123}
    run = read_run(write_run(tmp_path / "run", config(), [*lines, again]))
    assert run.points("accuracy")[3] == 0.123
    assert list(run.rounds.index) == [1, 2, 3, 4]


def test_a_loss_that_left_the_finite_numbers_is_no_point(tmp_path):
    lines = rounds(4)
    lines[1]["loss"], lines[2]["loss"] = float("nan"), float("inf")
    run = read_run(write_run(tmp_path / "run", config(), lines))
    assert list(run.points("loss").index) == [1, 4]


def test_runs_are_found_below_folders_and_each_once(sweep):
    found = find_runs([sweep / "0.1", sweep, sweep / "1.0" / "spry-0"])
    assert len(found) == 30
    assert len({run.folder for run in found}) == 30
    assert len(find_runs([sweep / "0.1" / "spry-1"])) == 1


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.json", "{", "config.json is not that of a run"),
        ("config.json", '{"method": "spry"}', "missing required field"),
        ("config.json", json.dumps(config(seed="one")), "got `str`"),
        ("rounds.jsonl", 'nonsense\n{"round": 2, "seconds": 1}\n', "line 1 is no round"),
        ("rounds.jsonl", '{"round": 1, "seconds": 1}\n{"round": 2}\n', "line 2 is no round"),
        ("rounds.jsonl", '{"round": 1, "seconds": "long"}\n', "got `str`"),
        ("summary.json", '{"peak_bytes": "much"}', "summary.json is not that of a run"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, file, text, said):
    folder = write_run(tmp_path / "run", config(), rounds(3))
    (folder / file).write_text(text)
    with pytest.raises(RunError, match=said) as caught:
        find_runs([tmp_path])
    assert str(folder / file) in str(caught.value)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(RunError, match="gone is no folder"):
        find_runs([tmp_path / "gone"])
    with pytest.raises(RunError, match="holds no run"):
        find_runs([tmp_path])
    (tmp_path / "rounds.jsonl").touch()
    with pytest.raises(RunError, match=r"holds no config\.json"):
        find_runs([tmp_path])

import random
from statistics import fmean

import numpy as np
import pandas as pd
import pytest

from server.simulation.compare.comparison import compare, kind_of, spread
from server.simulation.compare.runs import RunError, find_runs, read_run
from server.simulation.compare.tables import Table, compact, curve_figures, overview, show, tables, unfinished
from tests.server.simulation.conftest import config, rounds, write_run

MINUS = "\N{MINUS SIGN}"


def cells(table: Table, label: str) -> dict[str, str]:
    (row,) = (row for row in table.rows if row[0] == label)
    return dict(zip(table.headings, row, strict=True))


def deviation(values):
    """Return the deviation of a sample, by its definition."""
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def percent(values) -> str:
    return f"{100 * sum(values) / len(values):.1f} ± {100 * deviation(values):.1f}"


@pytest.fixture
def three(tmp_path):
    """Three seeds of one row: their lines, and where they are."""
    lines = [rounds(20, every=2) for _ in range(3)]
    for seed in range(3):
        write_run(tmp_path / f"spry-{seed}", config(seed=seed), lines[seed], peak=[100, 200, 600][seed] * 1_000_000)
    return lines, tmp_path


def test_cells_hold_what_is_computed_by_hand(three):
    lines, folder = three
    (group,) = compare(find_runs([folder])).groups
    scores, times, costs = tables(group)
    curves = [[line["accuracy"] for line in run if "accuracy" in line] for run in lines]
    personal = [[line["accuracy_personal"] for line in run if "accuracy" in line] for run in lines]
    row = cells(scores, "spry")
    assert row["seeds"] == "3"
    assert row["gradients"] == "forward"
    assert row["generalised final"] == percent([curve[-1] for curve in curves])
    assert row["generalised best"] == percent([max(curve) for curve in curves])
    assert row["generalised fall"] == percent([max(curve) - curve[-1] for curve in curves])
    assert row["personalised final"] == percent([curve[-1] for curve in personal])

    reached = [next(i for i, value in enumerate(curve) if value >= 0.95 * curve[-1]) for curve in curves]
    until = [2 * (i + 1) for i in reached]
    seconds = [sum(line["seconds"] for line in run[:end]) for run, end in zip(lines, until, strict=True)]
    row = group.rows[0]
    assert row.figures.loc["rounds_to_95"].to_list() == pytest.approx(
        [fmean(until), deviation(until), min(until), max(until), 3]
    )
    assert row.figures.loc["seconds_to_95", "mean"] == pytest.approx(sum(seconds) / 3)
    assert row.figures.loc["seconds", "mean"] == pytest.approx(
        sum(line["seconds"] for run in lines for line in run) / 3
    )
    assert row.figures.loc["step_seconds", "mean"] == pytest.approx(
        fmean(fmean(x["step_seconds"] for x in run) for run in lines)
    )
    assert "converged in round" not in times.headings  # twenty rounds have no two intervals of fifty

    up = [sum(line["bytes_up"] for line in run) / 200 for run in lines]
    assert row.figures.loc["bytes_up", "mean"] == pytest.approx(sum(up) / 3)
    assert row.figures.loc["bytes_up", "high"] == pytest.approx(max(up))
    row = cells(costs, "spry")
    assert row["bytes down"] == "91 kB"
    assert (row["numbers up"], row["numbers down"]) == ("2,308", "10,756")
    assert row["forward passes a step"] == "1.5"
    assert row["weights trained"] == "10,756"
    assert row["peak memory"] == "300 MB ± 265 MB"  # of 100, 200 and 600


def test_bytes_are_shared_by_the_clients_that_were_there(tmp_path):
    lines = [line | {"clients": clients} for line, clients in zip(rounds(4), (2, 0, 5, 3), strict=True)]
    (group,) = compare([read_run(write_run(tmp_path / "run", config(), lines))]).groups
    assert group.rows[0].figures.loc["bytes_up", "mean"] == pytest.approx(
        sum(line["bytes_up"] for line in (lines[0], *lines[2:])) / 10
    )


def test_convergence_is_judged_by_the_interval_of_the_paper(tmp_path):
    lines = [line | {"accuracy": 0.5 if line["round"] > 50 else random.random()} for line in rounds(150)]
    (group,) = compare([read_run(write_run(tmp_path / "run", config(), lines))]).groups
    assert group.rows[0].figures.loc["converged_round", "mean"] == 150
    assert cells(tables(group)[1], "spry")["converged in round"] == "150"


def test_a_single_seed_has_no_deviation_and_what_was_not_measured_is_empty(tmp_path):
    lines = [{"round": 1, "seconds": 1.0, "accuracy": 0.512}]
    write_run(tmp_path / "a", config("spry"), lines, peak=None)
    write_run(tmp_path / "b", config("fedavg"), rounds(3))
    (group,) = compare(find_runs([tmp_path])).groups
    scores, _, costs = tables(group)
    row = cells(scores, "spry †")
    assert row["generalised final"] == "51.2"
    assert row["personalised final"] == ""
    assert "to zero-order" not in row
    assert set(cells(costs, "spry †").values()) == {"spry †", "", "10,756"}
    assert unfinished(group) == ["† spry, seed 0 has not ended: 1 of 20 rounds"]


def test_figures_that_some_seeds_lack_say_so(tmp_path):
    for seed, peak in enumerate((4_000_000, None, 2_000_000)):
        write_run(tmp_path / str(seed), config(seed=seed), rounds(3), peak)
    (group,) = compare(find_runs([tmp_path])).groups
    assert cells(tables(group)[2], "spry †")["peak memory"] == "3 MB ± 1.41 MB (2 of 3)"


def test_rows_are_grouped_by_data_and_split_and_ordered_by_kind(sweep):
    compared = compare(find_runs([sweep]))
    assert [group.title for group in compared.groups] == ["news, Dirichlet 0.1", "news, Dirichlet 1"]
    for group in compared.groups:
        assert [row.label for row in group.rows][2:] == ["spry", "fedmezo", "classifier"]
        assert {row.label for row in group.rows[:2]} == {"fedavg", "fedyogi"}
        first, second = (row.figures.loc["accuracy.last", "mean"] for row in group.rows[:2])
        assert first >= second
        assert all([run.config.seed for run in row.runs] == [0, 1, 2] for row in group.rows)
    assert compared.common["model"] == "a-model"
    assert compared.common["adapter"] == "lora r=1 alpha=8"
    assert compared.common["training.learning_rate"] == "0.01"
    assert set(compared.differing) == {"split", "method", "training.estimator"}
    assert not {"seed", "training.seed"} & {*compared.common, *compared.differing}


def test_differences_are_to_the_best_of_their_kind_in_the_same_group(sweep):
    for group in compare(find_runs([sweep])).groups:
        last = {row.label: row.figures.loc["accuracy.last", "mean"] for row in group.rows}
        leader, other = sorted(("fedavg", "fedyogi"), key=last.__getitem__, reverse=True)
        scores = tables(group)[0]
        for label in ("spry", "fedmezo", "classifier", other):
            wanted = f"{100 * (last[label] - last[leader]):+.1f}".replace("-", MINUS)
            assert cells(scores, label)["to backprop"] == wanted
        assert cells(scores, leader)["to backprop"] == ""
        assert cells(scores, "fedmezo")["to zero-order"] == ""
        assert cells(scores, "spry")["to zero-order"] == f"{100 * (last['spry'] - last['fedmezo']):+.1f}"
        assert cells(scores, "classifier")["to head alone"] == ""
        wanted = f"{100 * (last['spry'] - last['classifier']):+.1f}".replace("-", MINUS)
        assert cells(scores, "spry")["to head alone"] == wanted


def test_the_overview_has_a_column_for_each_group(sweep):
    compared = compare(find_runs([sweep]))
    table = overview(compared)
    assert table.headings == ["method", "news, Dirichlet 0.1", "news, Dirichlet 1"]
    for group in compared.groups:
        for row in group.rows:
            finals = [run.rounds["accuracy"].iloc[-1] for run in row.runs]
            assert cells(table, row.label)[group.title] == percent(finals)
    assert overview(compare(find_runs([sweep / "0.1"]))) is None


def test_a_row_that_a_group_lacks_is_empty_in_the_overview(tmp_path):
    write_run(tmp_path / "a", config("spry"), rounds(3))
    write_run(tmp_path / "b", config("fedavg"), rounds(3))
    write_run(tmp_path / "c", config("spry", alpha=None), rounds(3))
    table = overview(compare(find_runs([tmp_path])))
    assert cells(table, "fedavg")["news, natural split"] == ""
    assert all(cells(table, "spry").values())


def labels(tmp_path, *settings) -> list[list[str]]:
    for number, one in enumerate(settings):
        write_run(tmp_path / str(number), one, rounds(2))
    return [sorted(row.label for row in group.rows) for group in compare(find_runs([tmp_path])).groups]


def test_a_label_says_no_more_than_tells_rows_apart(tmp_path):
    found = labels(
        tmp_path,
        config("fedavg", training={"directions": 1}),
        config("spry", training={"directions": 1}),
        config("spry", training={"directions": 10}),
        config("spry", preset="paper", training={"learning_rate": 1e-4}),
        config("fedmezo", adapter={"method": "bottleneck", "rank": 16}),
        config("fedmezo"),
    )
    assert found == [
        ["fedavg", "fedmezo, bottleneck r=16", "fedmezo, lora r=1 alpha=8", "spry, default, K 1", "spry, default, K 10",
         "spry, paper"]
    ]  # fmt: skip


def test_a_label_tells_the_servers_rates_from_the_clients(tmp_path):
    made = [config("spry", training={"learning_rate": rate}) for rate in (0.03, 0.1, 0.1)]
    for one, rate in zip(made, (0.01, 0.01, 0.02), strict=True):
        one["settings"]["optimizers"] = {"units": {"kind": "fedyogi", "learning_rate": rate}}
    assert labels(tmp_path, *made) == [
        ["spry, learning_rate 0.03", "spry, learning_rate 0.1, server learning_rate 0.01",
         "spry, learning_rate 0.1, server learning_rate 0.02"]
    ]  # fmt: skip


def test_runs_with_and_without_a_calibration_set_are_two_rows(tmp_path):
    runs = (config("spry", adapter={"method": "lora", "examples": file}) for file in ("", "at/desk.jsonl"))
    assert labels(tmp_path, *runs) == [["spry", "spry, examples desk.jsonl"]]


def test_fleets_of_which_fewer_devices_hold_an_exact_step_are_a_row_of_their_own(tmp_path):
    older = config("spry")  # does not know the setting
    assert labels(tmp_path, older, config("spry", seed=1, able=1.0), config("spry", able=0.5)) == [
        ["spry", "spry, able 0.5"]
    ]


def test_what_a_fleet_can_hold_tells_more_than_its_adapter(tmp_path):
    deep = config("spry", able=0.5, adapter={"method": "lora", "last_blocks": 0})
    assert labels(tmp_path, config("spry", adapter={"method": "lora"}), deep) == [["spry", "spry, able 0.5"]]


def test_seeds_in_other_arithmetic_are_no_seeds_of_the_same_row(tmp_path):
    for seed, arithmetic in enumerate(("float32", "bfloat16", "bfloat16")):
        write_run(tmp_path / str(seed), config(seed=seed, arithmetic=arithmetic), rounds(2))
    (group,) = compare(find_runs([tmp_path])).groups
    assert {row.label: len(row.runs) for row in group.rows} == {
        "spry, arithmetic float32": 1, "spry, arithmetic bfloat16": 2,
    }  # fmt: skip


def test_what_differs_between_groups_alone_is_no_part_of_a_label(tmp_path):
    found = labels(
        tmp_path,
        config("spry", rounds=20),
        config("spry", rounds=60, alpha=1.0, training={"learning_rate": 0.5}),
        config("spry", rounds=60, alpha=1.0, training={"learning_rate": 0.1}),
        config("fedavg", rounds=60, alpha=1.0),
    )
    assert found == [["spry, learning_rate 0.01"], ["fedavg", "spry, learning_rate 0.1", "spry, learning_rate 0.5"]]


def test_models_are_groups_of_their_own(tmp_path):
    write_run(tmp_path / "a", config(model="small"), rounds(2))
    write_run(tmp_path / "b", config(model="large"), rounds(2))
    titles = [group.title for group in compare(find_runs([tmp_path])).groups]
    assert titles == ["news, Dirichlet 0.1, large", "news, Dirichlet 0.1, small"]


def test_two_runs_of_one_seed_are_refused(tmp_path):
    write_run(tmp_path / "a", config(), rounds(2))
    write_run(tmp_path / "b", config(), rounds(2))
    with pytest.raises(RunError, match="runs of the same settings and seed 0; leave one out"):
        compare(find_runs([tmp_path]))


def test_kinds_come_from_the_estimator_and_from_what_is_trained(tmp_path):
    kinds = {method: kind_of(read_run(write_run(tmp_path / method, config(method), rounds(1))).config)
             for method in ("fedavg", "spry", "fedmezo", "classifier")}  # fmt: skip
    assert kinds == {"fedavg": "backprop", "spry": "forward", "fedmezo": "zero-order", "classifier": "head alone"}
    other = config("spry", training={"estimator": "psychic"})
    assert kind_of(read_run(write_run(tmp_path / "other", other, rounds(1))).config) is None


def test_answers_to_questions_are_compared_by_f1(tmp_path):
    for method in ("spry", "fedavg"):
        for seed in range(2):
            lines = [{"round": n, "seconds": 1.0, "exact_match": n / 10, "f1": n / 8} for n in range(1, 5)]
            lines[-1]["f1"] -= 0.1 * seed + 0.1 * (method == "spry")
            write_run(tmp_path / f"{method}{seed}", config(method, seed), lines)
    (group,) = compare(find_runs([tmp_path])).groups
    assert group.score == "f1"
    scores = tables(group)[0]
    row = cells(scores, "spry")
    assert row["F1 final"] == "35.0 ± 7.1"  # 0.4 and 0.3
    assert row["F1 fall"] == "3.8 ± 5.3"  # from 0.4 to 0.4, and from 0.375 to 0.3
    assert row["exact match final"] == "40.0 ± 0.0"
    assert row["to backprop"] == f"{MINUS}10.0"
    assert "generalised final" not in scores.headings


def test_perplexity_is_a_number_and_best_where_it_is_low(tmp_path):
    lines = [
        line | {"perplexity": value, "test_loss": 1.0} for line, value in zip(rounds(3), (90, 31.5, 40), strict=True)
    ]
    (group,) = compare([read_run(write_run(tmp_path / "run", config(), lines))]).groups
    assert group.score == "accuracy"
    scores, less, *_ = tables(group)
    assert not [heading for heading in scores.headings if "perplexity" in heading]
    assert less.title == "Scores, the less the better"
    row = cells(less, "spry")
    assert (row["perplexity final"], row["perplexity best"], row["test loss final"]) == ("40", "31.5", "1")


def test_a_curve_goes_as_far_as_all_seeds(tmp_path):
    lines = [rounds(count, every=2) for count in (10, 6)]
    for seed, run in enumerate(lines):
        write_run(tmp_path / str(seed), config(seed=seed), run)
    (group,) = compare(find_runs([tmp_path])).groups
    curve = group.rows[0].curve("accuracy")
    assert list(curve.index) == [2, 4, 6]
    for number, figure in curve.iterrows():
        values = [run[number - 1]["accuracy"] for run in lines]
        assert figure["mean"] == pytest.approx(sum(values) / 2)
        assert (figure["low"], figure["high"]) == (min(values), max(values))


def test_the_figures_of_a_chart_are_few_and_end_with_the_last(tmp_path):
    lines = rounds(100)
    (group,) = compare([read_run(write_run(tmp_path / "run", config(), lines))]).groups
    table = curve_figures(group, "accuracy")
    assert table.headings[-1] == "100"
    assert 8 <= len(table.headings) - 1 <= 12
    for heading in table.headings[1:]:
        assert cells(table, "spry")[heading] == f"{100 * lines[int(heading) - 1]['accuracy']:.1f}"


def test_a_run_that_has_just_begun_is_a_row_without_figures(tmp_path):
    write_run(tmp_path / "a", config(), [], peak=None)
    write_run(tmp_path / "b", config("fedavg"), rounds(3))
    (group,) = compare(find_runs([tmp_path])).groups
    row = cells(compact(group), "spry †")
    assert {"final", "fall", "rounds to 95 %"} <= set(row)
    assert [value for value in row.values() if value] == ["spry †"]
    assert unfinished(group) == ["† spry, seed 0 has not ended: 0 of 20 rounds"]


@pytest.mark.parametrize(
    ("values", "unit", "shown"),
    [
        ([0.875], "percent", "87.5"),
        ([0.5, 0.5], "percent", "50.0 ± 0.0"),
        ([0.8, 0.9], "percent", "85.0 ± 7.1"),
        ([12.0, 12.0], "number", "12"),
        ([10.0, 20.0], "number", "15 ± 7"),
        ([10_756.0], "number", "10,756"),
        ([0.0525], "seconds", "0.0525"),
        ([0.05, 0.055], "seconds", "0.0525 ± 0.0035"),
        ([2.5], "seconds", "2.5"),
        ([2000.25, 4000.25], "seconds", "3,000 ± 1,414"),
        ([0.0], "seconds", "0"),
        ([43_000.0, 43_000.0], "bytes", "43 kB"),
        ([1e6, 3e6], "bytes", "2 MB ± 1.41 MB"),
    ],
)
def test_figures_are_shown_in_few_digits(values, unit, shown):
    assert show(spread(pd.DataFrame([values])).loc[0], unit) == shown


def test_runs_of_an_older_version_stand_in_the_same_row(tmp_path):
    """They lack settings that have come since, which have their defaults."""
    new, old = config(seed=0), config(seed=1)
    new["settings"] |= {"units_per_client": 1}
    write_run(tmp_path / "new", new, rounds(3))
    write_run(tmp_path / "old", old, rounds(3))
    (group,) = compare(find_runs([tmp_path])).groups
    assert [len(row.runs) for row in group.rows] == [2]
    new["settings"] |= {"units_per_client": 3}
    write_run(tmp_path / "other", new, rounds(3))
    (group,) = compare(find_runs([tmp_path])).groups
    assert {row.label for row in group.rows} == {"spry, units_per_client 3", "spry, units_per_client 1"}


def test_settings_that_a_mean_does_not_use_make_no_rows(tmp_path):
    for seed, rate in enumerate((0.01, 0.001)):
        made = config("fedavg", seed)
        mean = {"kind": "fedavg", "learning_rate": rate, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
        made["settings"]["optimizers"] = {"units": mean, "head": mean}
        write_run(tmp_path / str(seed), made, rounds(3))
    compared = compare(find_runs([tmp_path]))
    assert [len(row.runs) for row in compared.groups[0].rows] == [2]
    assert compared.common["optimizers.units.kind"] == "fedavg"
    assert "optimizers.units.learning_rate" not in compared.common


def test_a_curve_over_what_a_device_computes(tmp_path):
    """Summed up over the rounds, a mean over the fleet and the seeds; none where a round does not tell."""
    for seed, passes in ((0, 100.0), (1, 300.0)):
        lines = [{**line, "device_passes": passes} for line in rounds(4, every=2)]
        write_run(tmp_path / f"spry-{seed}", config(seed=seed, clients=50), lines)
    write_run(tmp_path / "other", config(method="fedavg", clients=50), rounds(4, every=2))
    (group,) = compare(find_runs([tmp_path])).groups
    spry, other = sorted(group.rows, key=lambda row: row.label, reverse=True)
    assert list(spry.curve_by_passes("accuracy").index) == [2 * (2 + 6) / 2, 4 * (2 + 6) / 2]
    np.testing.assert_array_equal(spry.curve_by_passes("accuracy"), spry.curve("accuracy"))
    assert other.curve_by_passes("accuracy").empty


def test_a_curve_over_simulated_time_is_that_of_the_seeds_clocks(tmp_path):
    """Rows whose lines have no clock have none; a fleet of other speeds is another row."""
    for seed, pace in ((0, 10.0), (1, 30.0)):
        lines = [{**line, "clock": pace * line["round"], "staleness": 1.5} for line in rounds(4, every=2)]
        write_run(tmp_path / f"late-{seed}", config(seed=seed, speeds=10.0), lines)
    write_run(tmp_path / "alike", config(), rounds(4, every=2))
    (group,) = compare(find_runs([tmp_path])).groups
    late, alike = sorted(group.rows, key=lambda row: -len(row.runs))
    assert list(late.curve_by_clock("accuracy").index) == [40, 80]
    np.testing.assert_array_equal(late.curve_by_clock("accuracy"), late.curve("accuracy"))
    assert alike.curve_by_clock("accuracy").empty
    assert (late.figures.loc["clock", "mean"], late.figures.loc["staleness", "mean"]) == (80, 1.5)
    assert "speeds 10" in late.label

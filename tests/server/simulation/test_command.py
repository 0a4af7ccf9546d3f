"""`spry simulate` as a stranger uses it."""

import json
import logging
import os
import platform
import pty
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from edge_client.commands.cli import installed, load, run
from server.simulation.methods.methods import METHODS
from server.simulation.plan import plan_for
from tests.server.simulation.runs import bits
from tests.warm import python

WRONG = [
    ({"method": "spryy"}, "unknown method 'spryy'; expected one of spry, fedfgd, fedavg"),
    ({"variance-bound": 3}, "--variance-bound is for fwdllm\\+ only, and the method is spry: leave it out"),
    ({"method": "fedsgd", "iterations": 4}, "method fedsgd has training.iterations 1, not 4: leave it out"),
    ({"settings": '{"training": {"estimator": "exact"}}'}, "spry has training.estimator forward, not exact"),
    ({"estimator": "exact"}, "spry has training.estimator forward, not exact"),
    ({"method": "fedavg", "estimator": "mixed"}, "fedavg has training.estimator exact, not mixed"),
    ({"estimator": "mixed", "mode": "iteration"}, "mode iteration sends derivatives: estimator mixed needs mode"),
    ({"set": "training=3"}, "training: Input should be"),
    ({"settings": '{"training": 3}'}, "training.batch cannot be set: training was given as 3, not as an object"),
    ({"set": "rounds"}, "--set takes KEY=VALUE, as in training.epochs=2; got 'rounds'"),
    ({"set": "training.estimator=exact"}, "spry has training.estimator forward, not exact"),
    ({"settings": "none.json"}, "settings none.json cannot be read as JSON: .* No such file"),
    ({"settings": "a-file"}, "settings a-file cannot be read as JSON: Expecting value"),
    (
        {"preset": "x"},
        "preset: Input should be 'auto', 'forward', 'scalars', 'default', 'paper' or 'bottleneck'",
    ),
    ({"engine": "x"}, "unknown engine 'x'; expected local or ray"),
    ({"runtime": "onnx"}, "--runtime is for a bundle's programs, and .* is no bundle: leave it out"),
    ({"task": "x"}, "task: Input should be 'seq-cls', 'qa'"),
    (
        {"peft": "x"},
        "unknown adapter 'x'; expected one of bitfit, bottleneck, classifier, ia3, lora",
    ),
    ({"target-modules": "gate"}, "target module gate matches no linear layer of the model"),
    ({"model": "nowhere/"}, "nowhere/ is no folder and no GGUF file"),
    ({"data": "empty"}, "empty has no train.jsonl or train.csv with a row for each example"),
    ({"text": "body"}, "has no column 'body' for the text; its columns are text, label: say which to take"),
    ({"label": "kind"}, "has no column 'kind' for the label"),
    ({"by": "author"}, "has no column 'author' to split over"),
    ({"bad-rows": "keep"}, "bad_rows: Input should be 'refuse' or 'skip'"),
    ({"alpha": "0"}, "alpha must be from 1e-06 to 1e[+]06, got 0"),
    ({"per-round": "13"}, "--per-round is 13, more than --clients 12: lower it"),
    ({"clients": "1000"}, "60 rows are enough for 1 to 30 clients, 2 rows each, not 1000"),
    (
        {"method": "fedavg", "mode": "iteration"},
        "settings: mode iteration sends derivatives: estimator exact needs mode",
    ),
    ({"length": "64"}, "the model has 32 positions, got --length 64; choose a shorter length"),
    ({"learning-rate": "-1"}, "training.learning_rate: Input should be greater than 0"),
    ({"settings": "{"}, "--settings cannot be read as JSON: Expecting property name"),
    ({"settings": "[1]"}, "--settings must be a JSON object"),
    ({"settings": '{"training": {"speed": 1}}'}, "training.speed: Unexpected keyword argument"),
    ({"device": "tpu"}, "unknown device 'tpu'; expected cpu, cuda or cuda:N"),
    ({"device": "cuda:99"}, "--device cuda:99 was asked for, but torch .* finds .* CUDA devices; use cpu"),
    ({"arithmetic": "int8"}, "arithmetic: Input should be 'float32' or 'bfloat16'"),
    ({"out": "a-file"}, "a-file is not a folder; choose another --out"),
    ({"out": "fleet-data"}, "fleet-data holds something else than a simulation; choose another --out"),
    ({"rounds": "0"}, "Invalid value for '--rounds'"),
    ({"speed": "1"}, "No such option: --speed"),
]


@pytest.fixture
def words(model_folder, writing, tmp_path, monkeypatch):
    """The command on a small data set, with some options changed."""
    data = writing()
    (tmp_path / "a-file").write_text("")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    usual = {
        "model": model_folder, "data": data, "out": "run", "clients": 12, "per-round": 4, "rounds": 2, "batch": 4,
        "length": 8,
    }  # fmt: skip

    def with_changes(*flags, **changed):
        options = usual | {name.replace("_", "-"): value for name, value in changed.items()}
        return ["simulate", *(str(word) for name, value in options.items() for word in (f"--{name}", value)), *flags]

    return with_changes


@pytest.fixture(autouse=True)
def _as_before():
    """The command silences libraries and takes a signal for its process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    logging.disable(logging.NOTSET)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("changed", "why"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_use_is_told_in_one_line(changed, why, words, capsys):
    assert run(words(**changed)) == 2
    told = capsys.readouterr()
    assert re.search(why, told.err)
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert not told.out


@pytest.mark.filterwarnings("ignore")
def test_the_folder_of_a_refused_command_is_free_for_the_next(words, capsys, tmp_path):
    assert run(words(text="body")) == 2
    assert not (tmp_path / "run").exists()
    assert run(words("--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["rounds_to_95"] in (1, 2)
    assert 0 <= summary["accuracy"] <= 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_by_the_papers_preset(method, words, capsys):
    """`run/test_costs.py` plays rounds by the default."""
    assert run(words("--json", method=method, preset="paper", rounds=1, iterations=1)) == 0
    assert json.loads(capsys.readouterr().out)["bytes_up"] > 0
    default = plan_for(method=method, preset="default", model="tiny", data="sst2", seed=0, adapter={}, settings={})
    assert default.kind == papers("sst2", method).kind


def test_a_run_does_not_go_on_with_another_calibration_set(words, tmp_path, capsys):
    desk = tmp_path / "desk.jsonl"
    desk.write_text((tmp_path / "fleet-data" / "train.jsonl").read_text())
    narrow = {"preset": "bottleneck", "peft": "bottleneck", "rank": 2, "examples": desk, "iterations": 1}
    assert run(words(rounds=1, **narrow)) == 0
    narrow["examples"] = desk = desk.rename(tmp_path / "fleet-data" / desk.name)
    assert run(words(rounds=2, **narrow)) == 0  # wherever they lie
    with desk.open("a") as file:
        file.write('{"text": "ice on the lake", "label": 1}\n')
    assert run(words(rounds=3, **narrow)) == 2
    assert "differs in data.at_the_desk" in capsys.readouterr().err


@pytest.fixture
def config_of(words, tmp_path):
    """Return what a short run with these options was started with."""

    def run_once(**options):
        assert run(words(rounds=1, iterations=1, **options)) == 0
        return json.loads((tmp_path / "run" / "config.json").read_text())

    return run_once


def test_bottlenecks_start_from_their_preset(config_of):
    config = config_of(peft="bottleneck", rank=2)
    assert config["preset"] == "bottleneck"
    settings = config["settings"]
    assert (settings["training"]["estimator"], settings["training"]["exact_blocks"]) == ("mixed", 2)
    assert settings["training"]["learning_rate"] == 0.001
    assert [settings["optimizers"][part]["kind"] for part in ("units", "head")] == ["fedyogi", "fedavg"]
    assert settings["average"] == 0.9


def test_a_forward_fleet_starts_from_its_plan_as_a_job_does(config_of):
    config = config_of(peft="lora", rank=1, estimator="forward")
    assert (config["method"], config["preset"]) == ("spry", "forward")
    settings = config["settings"]
    assert (settings["passes"], settings["training"]["kind"]) == (2.0, "orthogonal")
    assert settings["training"]["directions"] > 1


def test_a_plan_fills_in_what_options_leave_open_of_an_adapter(config_of):
    adapter = config_of(estimator="forward", last_blocks=1)["adapter"]
    assert (adapter["method"], adapter["rank"], adapter["last_blocks"]) == ("bottleneck", 16, 1)


def test_a_baseline_keeps_its_own_forward_step(config_of):
    assert config_of(method="fedfgd")["preset"] == "default"


def test_settings_lie_under_options_and_options_under_what_is_set(words, tmp_path):
    """As with `spry job create`; `--settings` is a file or the JSON itself."""
    given = {"training": {"sigma": 0.01, "batch": 7, "length": 16, "epochs": 9}, "average": 0.5}
    (tmp_path / "settings.json").write_text(json.dumps(given))
    for number, settings in enumerate((json.dumps(given), "settings.json")):
        flags = "--set", "training.length=6", "--set", "training.weight_decay=0.1"
        assert run(words(*flags, settings=settings, rounds=1, iterations=1, out=f"run-{number}")) == 0
        found = json.loads((tmp_path / f"run-{number}" / "config.json").read_text())["settings"]
        training = found["training"]
        assert (training["sigma"], training["epochs"], found["average"]) == (0.01, 9, 0.5)
        assert (training["batch"], training["length"], training["weight_decay"]) == (4, 6, 0.1)


def test_other_methods_start_from_their_own_rates(config_of):
    assert config_of(method="fedavg", peft="bottleneck", rank=2)["preset"] == "default"


def test_the_bound_of_fwdllm():
    given = {"method": "fwdllm+", "model": "tiny", "data": "sst2", "seed": 0, "adapter": {}, "settings": {}}
    assert plan_for(preset="default", **given).variance_bound == 10
    assert plan_for(preset="paper", **given).variance_bound == 5
    assert plan_for(preset="paper", variance_bound=700.0, **given).variance_bound == 700


def papers(data, method="spry", adapter=None, **given):
    return plan_for(
        method=method, preset="paper", model="tiny", data=data, seed=0, adapter=adapter or {}, settings={}, **given
    )


@pytest.mark.parametrize(
    ("data", "clients", "by"), [("ag_news", 1000, ""), ("sst2", 100, ""), ("squad_v2", 500, "title"), ("mine", 100, "")]
)
def test_the_papers_fleets(data, clients, by):
    found = papers(f"data/{data}")
    assert (found.clients, found.by) == (clients, by)
    assert papers(data, clients=7).clients == 7


def test_the_papers_adapter_is_lora_of_rank_1_in_all_blocks_unless_another_is_named():
    adapter = papers("sst2").adapter
    assert (adapter.rank, adapter.alpha, adapter.last_blocks) == (1, 1.0, 0)
    named = papers("sst2", adapter={"rank": 8, "last_blocks": 3}).adapter
    assert (named.rank, named.alpha, named.last_blocks) == (8, 1.0, 3)
    assert papers("sst2", adapter={"method": "ia3", "last_blocks": 2}).adapter.last_blocks == 2


def test_backpropagation_has_the_papers_batch_on_squad():
    batches = {method: papers("squad_v2", method).settings.training.batch for method in ("fedavg", "spry", "fedmezo")}
    assert batches == {"fedavg": 4, "spry": 8, "fedmezo": 8}


@pytest.mark.parametrize("method", ["spry", "fedfgd", "fedmezo", "baffle+", "fwdllm+", "fedyogi", "fedsgd"])
def test_the_papers_server_moves_units_and_head_by_fedyogi(method):
    optimizers = plan_for(
        method=method, preset="paper", model="tiny", data="ag_news", seed=0, adapter={}, settings={}
    ).settings.optimizers
    assert (optimizers.units.kind, optimizers.head.kind) == ("fedyogi", "fedyogi")


@pytest.mark.filterwarnings("ignore")
def test_what_is_printed_where_nobody_watches(words, capsys, tmp_path):
    assert run(words(evaluate_every=2, rounds=5)) == 0
    told = capsys.readouterr()
    assert [line.partition(":")[0] for line in told.err.splitlines()] == ["round 2", "round 4", "round 5"]
    assert re.fullmatch(r"round 5: loss [\d.]+, accuracy [\d.]+, accuracy_personal [\d.]+", told.err.splitlines()[-1])
    assert re.search(r"^accuracy +[01]?\.?\d+$", told.out, re.MULTILINE)
    assert "Next: spry report run --out report.html" in told.out
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.json", "rounds.jsonl", "rounds.csv", "summary.json", "curves.svg", "adapter", "checkpoint"
    }  # fmt: skip
    before = bits(tmp_path / "run")
    assert run(words(evaluate_every=2, rounds=5)) == 0
    assert capsys.readouterr().out == told.out
    assert bits(tmp_path / "run") == before


@pytest.mark.filterwarnings("ignore")
def test_clients_own_models_are_measured_in_mode_iteration_too(words, capsys):
    assert run(words(mode="iteration", iterations=2, evaluate_every=2, rounds=2)) == 0
    assert re.fullmatch(
        r"round 2: loss [\d.]+, accuracy [\d.]+, accuracy_personal [\d.]+", capsys.readouterr().err.splitlines()[-1]
    )


def test_a_terminal_sees_a_bar_with_the_time_left_and_nothing_else(words):
    ours, theirs = pty.openpty()
    command = [python(), "-c", "from edge_client.commands.cli import main; main()", *words()]
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # how a terminal ends
        while found := os.read(ours, 4096):
            seen += found
    os.close(ours)
    assert process.wait() == 0
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", seen.decode())
    lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert re.fullmatch(r"round ━+ 2/2 [\d:]+ left 0:00:00 loss [\d.]+, accuracy [\d.]+.*", lines[-1].strip())
    assert all(line.startswith("round ") for line in lines)


def test_the_help_names_every_method():
    (option,) = (found for found in load(installed()["simulate"]).params if found.name == "method")
    assert set(METHODS) <= set(re.findall(r"[\w+]+", option.help))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 processor, whose flags tell what it has")
def test_slow_arithmetic_is_told_where_the_processor_has_no_instructions_for_it(words, capsys):
    flags = Path("/proc/cpuinfo").read_text().split()
    small = {"rounds": 1, "clients": 2, "per_round": 1, "iterations": 1}
    assert run(words(**small, arithmetic="bfloat16")) == 0
    told = "--arithmetic float32 is faster" in capsys.readouterr().err
    assert told == (not {"avx512bw", "avx_ne_convert"} & set(flags))
    assert run(words(**small, out="exact")) == 0
    assert "--arithmetic" not in capsys.readouterr().err

"""Benchmarks with a server and clients, each on its smallest case: that they run, and what they themselves demand."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.benchmarks import FOLDER, script
from tests.conftest import LABELS
from tests.server.simulation.test_conversations import short
from tests.test_journeys import rows
from tests.tickets import table, tickets
from tests.warm import python


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(80, seed=1)))
    return folder


def ran(name: str, *options: object, misses: bool = False) -> str:
    """Run a script that must end well, and return what it printed; it may miss targets that are for another size."""
    command = [python(), str(FOLDER / f"{name}.py"), *map(str, options)]
    own = os.environ | {"PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, env=own, check=False)
    assert done.returncode in ((0, 1) if misses else (0,)), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_nothing_is_lost_in_crashes(tiny, data):
    """Whether an update is late is up to the machine here; `test_late.py` has those that are."""
    options = "--kills", 2, "--rounds", 4, "--steps", 1, "--pause", 1, "--buffer", 2
    told = ran("crash", "--bundle", tiny, "--data", data, *options)
    assert "2 kills of the server" in told
    assert "bit for bit: True" in told


def test_servers_of_the_same_process_number_take_each_others_rounds_over(tiny, data):
    namespace = subprocess.run([*script("fleet").NAMESPACE, "true"], capture_output=True, check=False)
    if namespace.returncode:
        pytest.skip("needs root, and unshare of util-linux, to make process namespaces")
    options = "--kills", 2, "--rounds", 2, "--steps", 1, "--pause", 1, "--held-out", 1000, "--namespace"
    options += "--aggregation", "trimmed"
    assert "bit for bit: True" in ran("crash", "--bundle", tiny, "--data", data, *options)


def test_a_model_that_no_memory_holds(tmp_path):
    told = ran("large", "--shape", "tiny", "--seq", 8, "--work", tmp_path / "large")
    lines = told.splitlines()
    assert lines[1].startswith("export ")
    assert [line.split(" s (")[0].rsplit(maxsplit=1)[0].strip() for line in lines[2:]] == [
        f"{kind} {way}" for kind in ("dual ", "exact") for way in ("all programs loaded", "one program at a time")
    ]
    assert not list(tmp_path.iterdir())


def test_an_export_ends_with_the_benchmark_that_began_it(tmp_path):
    command = [sys.executable, str(FOLDER / "large.py"), "--shape", "tiny", "--work", str(tmp_path / "large")]
    own = os.environ | {"PYTHONPATH": str(FOLDER.parent)}
    running = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=own)
    until = time.monotonic() + 300
    while not (children := running.children(recursive=True)) and time.monotonic() < until:
        time.sleep(0.05)
    assert children, "no export was begun"
    running.terminate()
    assert running.wait(300) == 128 + signal.SIGINT
    _, left = psutil.wait_procs(children, timeout=300)
    assert not left
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("prove", [(), ("--secrets",)])
def test_load(tiny, prove):
    options = "--devices", 8, "--per-round", 2, "--rounds", 2, "--rate", 20, "--seconds", 1, "--p99", 5000
    assert "CPU ms each" in ran("load", "--bundle", tiny, *options, *prove)


def test_dashboards(tiny):
    found = json.loads(ran("dashboards", "--bundle", tiny, "--pages", 20, "--devices", 3, "--seconds", 3, "--json"))
    assert found["told to the least"] > 1000


def test_strangers():
    options = "--connections", 120, "--patience", 2, "--before", 1, "--seconds", 4, "--json"
    found = json.loads(ran("strangers", *options, misses=True))
    assert found["health: asked"] >= 1
    assert not found["health: not answered"]
    assert not found["check-in: not answered"]


def test_memory_over_time(tiny, data):
    options = "--rounds", 4, "--every", 2, "--steps", 1, "--examples", 20, "--settled", 1
    lines = ran("memory", "--bundle", tiny, "--data", data, *options, misses=True).splitlines()
    sizes = [float(line.split(" MB")[0].split()[-1]) for line in lines if " MB" in line]
    assert len(sizes) == 5
    assert max(sizes) > 20  # a process that has just begun anew, as it does between rounds, is small for a moment
    assert lines[-1].lstrip().startswith("drift")


def test_memory_is_not_measured_of_a_client_that_would_wait_for_ever(tiny, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a row of another job", "label": "elsewhere"}\n')
    with pytest.raises(SystemExit, match=r"does not fit .*'elsewhere'.*its labels are"):
        script("memory").require_fitting(tiny, path, 500)


def test_the_first_hour_without_its_downloads(tiny):
    options = "--only", "device", "--device-only", "--no-install", "--bundle", tiny, "--json"
    found = json.loads(ran("first_hour", *options))
    commands = [(step["part"], step["command"].split()[1]) for step in found["steps"]]
    assert commands == [("server", "job"), ("server", "token"), ("server", "job"), ("device", "join")]
    assert found["device"]["commands"] == 1


def test_a_short_soak(tiny):
    options = "--minutes", 0.3, "--devices", 4, "--every", 1, "--keep", 2, "--json"
    found = json.loads(ran("soak", "--bundle", tiny, *options))
    assert found["figures"][-1]["rounds"] > 3
    assert all(found["flat"].values())


def test_aggregation_and_directions(tiny):
    assert "MB of updates" in ran("aggregation", "--updates", 20)
    assert set(json.loads(ran("directions", "--json"))) == {"normal", "rademacher", "orthogonal"}


def test_learning(tiny, data):
    told = ran("learning", "--bundle", tiny, "--data", data, "--clients", 2, "--rounds", 1, "--target", 0.01, "--json")
    assert json.loads(told.splitlines()[-1])


def test_poison_in_the_simulator_and_on_a_server(tiny, model_folder, tmp_path):
    """Each device has the same four rows, one batch: all that tell the truth send the same, and none can be named."""
    same = [{"text": text, "label": label} for text, label in (("ice on lake", "no"), ("it is the train", "yes"))]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in same * 8))
    few = "--clients", 4, "--malicious", 1, "--examples", 4, "--alpha", 1e4, "--rounds", 1, "--test-examples", 8
    options = "--data", tmp_path, "--out", tmp_path, "--rules", "trimmed", "--fleets", "honest,negated", "--json", *few
    own = "--model", model_folder, "--batch", 4, "--length", 8
    for found in (json.loads(ran("poison", *options, *more)) for more in (own, ("--bundle", tiny))):
        assert list(found) == ["without mean 0", "honest trimmed 0", "negated trimmed 0"]
    assert not found["honest trimmed 0"]["named"]
    assert set(found["negated trimmed 0"]["named"]) == {"device-3"}
    again = json.loads(ran("poison", *options, *own))
    assert json.loads((tmp_path / "simulated.json").read_text()) == again
    assert again["negated trimmed 0"]["outliers"] == 1
    assert again["honest trimmed 0"]["outliers"] == 0


def test_slow_devices_in_the_simulator_and_on_a_server(tiny, model_folder, data, tmp_path):
    few = "--clients", 3, "--examples", 10, "--rounds", 3, "--buffered-rounds", 4, "--buffer", 1, "--test-examples", 8
    options = "--data", data, "--out", tmp_path, "--steps", 1, *few
    own = "--model", model_folder, "--batch", 4, "--length", 8
    for more in (own, ("--bundle", tiny, "--spread", 3)):
        found = json.loads(ran("buffered", *options, *more, "--json"))
        assert {"level", "synchronous", "buffered", "ratio"} == set(found)
    curves = json.loads((tmp_path / "simulated.json").read_text())
    assert [len(curves[schedule]) for schedule in ("synchronous", "buffered")] == [3, 4]
    assert curves["buffered"][-1][0] < curves["synchronous"][-1][0], (
        "four updates that come beat three times the slowest"
    )
    assert "of the synchronous job's time" in ran("buffered", *options, *own) or found["ratio"] is None


def test_heads_over_splits(model_folder, data, tmp_path):
    few = "--clients", 5, "--malicious", 1, "--examples", 8, "--rounds", 2, "--test-examples", 8, "--seeds", 1, "--json"
    options = "--data", data, "--out", tmp_path, "--model", model_folder, "--batch", 4, "--length", 8
    found = json.loads(ran("heads", *options, "--alphas", "10", "--rules", "agreeing", *few))
    assert list(found) == [f"alpha 10 {case}" for case in ("without mean", *(f"{k} agreeing" for k in FLEETS))]
    assert all(0 <= one["accuracy"] <= 1 for one in found.values())
    assert found["alpha 10 negated agreeing"]["malicious"] > 0
    assert json.loads(ran("heads", *options, "--alphas", "10", "--rules", "agreeing", *few)) == found


FLEETS = "honest", "negated", "flipped"


def test_privacy(model_folder, data, tmp_path):
    """A fleet that sees its texts often remembers them, and not with a budget."""
    fleet = "--clients", 8, "--per-round", 4, "--rounds", 2, "--members", 8, "--texts", 4, "--member-rounds", 30
    training = {"estimator": "exact", "epochs": 4, "learning_rate": 0.3, "head_learning_rate": 0.3}
    settings = {"measure_features": False, "units_per_client": 0, "training": training}
    settings["optimizers"] = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    options = "--data", data, "--out", tmp_path, "--model", model_folder, "--batch", 4, "--length", 8, "--json"
    found = json.loads(ran("privacy", *options, *fleet, "--settings", json.dumps(settings)))
    assert found["accuracy with"]["epsilon"] == pytest.approx(8.0, abs=0.05)
    without, with_ = found["membership without"], found["membership with"]
    assert without["attack"] - without["two_errors"] > 0.5
    assert abs(with_["attack"] - 0.5) < with_["two_errors"] * 1.5
    assert json.loads(ran("privacy", *options, *fleet)) == found


def test_scalars(tiny, data):
    options = "--clients", 2, "--rounds", 1, "--iterations", 2
    assert "2 iterations of 2 clients" in ran("scalars", "--bundle", tiny, "--data", data, *options)


def test_adapters(model_folder, data):
    (data / "labels.json").write_text(json.dumps(LABELS))
    options = "--adapter", "lora:rank=1", "--adapter", "classifier", "--steps", 60, "--length", 8
    lora, head = ran("adapters", "--data", data, "--model", model_folder, *options).splitlines()[-2:]
    assert lora.split()[0] == "lora:rank=1"
    assert int(lora.split()[1]) > 0
    assert head.split()[:3] == ["classifier", "0", "numbers"]


def test_the_simulator_where_its_rivals_cannot_be_installed(model_folder):
    rivals = "--pfl", "/proc/none", "--flower", "/proc/none"
    work = "--workers", 1, "--turns", 1, "--rounds", 2, "--clients", 2, "--steps", 1
    found = json.loads(ran("simulators", "--model", model_folder, *rivals, *work, "--json"))
    assert found["left_out"].keys() == {"pfl", "Flower's engine"}
    assert all(why.startswith("it cannot be installed: ") for why in found["left_out"].values())
    assert found["differs"] == {"spry simulate --engine ray from spry simulate": 0.0}


def test_a_user_with_some_rows_of_a_folder(model_folder, tmp_path):
    for part, count in (("train", 40), ("test", 20)):
        table(tmp_path / f"{part}.csv", ("sentence", "category"), tickets(count, seed=count))
    options = "--take", 24, "--model", model_folder, "--devices", 2, "--json"
    told = json.loads(ran("own_data", "--rows", tmp_path, *options))
    assert told["difference"] == pytest.approx(told["accuracy"] - told["in_one_place"])
    assert (told["rows"], told["held_out"], len(told["regression"])) == (24, 20, 2)


def written(folder: Path, rows: dict[str, list[dict]]) -> Path:
    folder.mkdir()
    for name, part in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


def test_a_language_model_of_a_fleet_beside_fedavg(talker_folder, tmp_path):
    found = short(random.Random(3), 23)
    data = written(tmp_path / "data", {"train": found[:18], "test": found[18:]})
    sizes = "--devices", 2, "--per-round", 2, "--examples", 9, "--held-out", 6, "--length", 64, "--batch", 2
    steps = "--rounds", 2, "--every", 2, "--steps", 1, "--rates", 0.001, 0.1, "--answers", 1
    options = "--model", talker_folder, "--data", data, "--out", tmp_path / "run", *sizes, *steps, "--json"
    (rows,) = json.loads(ran("language", *options, misses=True))["fleets"].values()
    assert list(rows) == ["before", "default", "fedavg", "one place", "half able", "forward"]
    for row in rows.values():
        assert row["by transformers"] == pytest.approx(row["test_loss"], rel=1e-4), "an adapter that PEFT loads"
    start, best = rows["before"]["test_loss"], rows["fedavg"]["test_loss"]
    assert best == min(
        json.loads((tmp_path / "run" / "2-devices-0" / f"fedavg-{rate}" / "summary.json").read_text())["test_loss"]
        for rate in ("0.001", "0.1")
    )
    assert {name: row["closed"] for name, row in rows.items()} == pytest.approx(
        {name: (start - row["test_loss"]) / (start - best) for name, row in rows.items()}
    )
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("summary.json")}
    assert len(kept) == 7  # two of them at two rates
    assert json.loads(ran("language", *options, "--show", misses=True))["fleets"] == {"2 devices, seed 0": rows}
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_numbers_of_answers_are_compared():
    script("fleet")
    alike = script("language").ends_alike
    assert alike("1 + 2 = 3\n#### 1,200", "so it is 1200.0.")
    assert not alike("none", "#### 3")
    assert not alike("3 of 4", "#### 3")


def test_the_cell_of_edge_flower_tune(talker_folder, tmp_path):
    texts = [{"text": f"so {number}", "label": number % 2} for number in range(24)]
    data = written(tmp_path / "data", {"train": texts[:16], "test": texts[16:]})
    (data / "labels.json").write_text('["no", "yes"]')
    sizes = "--examples", 2, "--held-out", 8, "--rounds", 1, "--steps", 1, "--repeats", 1, "--verify", "none"
    told = ran("edge_flower_tune", "--model", talker_folder, "--data", data, "--work", tmp_path / "work", *sizes)
    _, title, _, *lines, missing = told.splitlines()
    assert title.count("|") == 9
    assert [line.split(" | ")[0] for line in lines] == [
        "| forward pass alone", "| exact", "| mixed", "| forward", "| LoRA by backprop"
    ]  # fmt: skip
    assert all(float(cell) >= 0 for line in lines[1:] for cell in line.strip("| ").split(" | ")[1:])
    assert missing == "Not measured: power, and phones."


def test_what_is_measured_beside_llama_cpp_says_how_it_is_called():
    """A language model and llama.cpp are not at hand here."""
    for told in (ran("chat", "--help"), ran("forward", "--help"), ran("adapter_loss", "--help")):
        assert told.startswith("usage:")
        assert "GGUF" in told or "gguf" in told


def test_the_comparison_with_flower_says_how_it_is_called():
    """Flower is in an environment of its own: `make flower` runs it."""
    assert ran("flower", "--help").startswith("usage:")


def test_a_prefix_that_is_kept_changes_no_step(model_folder, data, tmp_path):
    options: tuple[object, ...] = (
        "simulate", "--model", model_folder, "--data", data, "--clients", 4, "--per-round", 2, "--rounds", 2,
        "--batch", 2, "--iterations", 2, "--length", 8, "--last-blocks", 1, "--peft", "bottleneck", "--rank", 2,
        "--estimator", "forward",
    )  # fmt: skip
    ran("kept_prefix", tmp_path / "kept", *options, "--out", tmp_path / "prefix")
    subprocess.run([python(), "-m", "edge_client", *map(str, options), "--out", str(tmp_path / "whole")], check=True)
    ours, whole = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]
        for name in ("prefix", "whole")
    )
    assert ours == pytest.approx(whole, abs=2e-3)  # 16 bits of what enters the block
    assert [*(tmp_path / "kept").glob("*.npz")]


def test_cuts_of_a_forward_fleet(model_folder, data, tmp_path):
    (tmp_path / "sst2").symlink_to(data)
    small = "--adapters", "bottleneck:2", "--blocks", 1, "--rounds", 1, "--clients", 12, "--sets", "sst2"
    told = ran("cuts", "--data", tmp_path, "--out", tmp_path / "runs", "--model", model_folder, *small)
    assert [row.split(" | ")[3] for row in told.splitlines()[2:]] == ["exact", "plan"]


def test_every_script_is_run_by_a_test():
    texts = "".join(path.read_text() for path in Path(__file__).parent.rglob("*.py"))
    run = set(re.findall(r'\b(?:ran|script)\(\s*"(\w+)"', texts)) | set(re.findall(r'FOLDER / "(\w+)\.py"', texts))
    for names in re.findall(r"script\(name\) for name in \(([^)]*)\)|in \(([^)]*)\):\s+script\(", texts):
        run |= set(re.findall(r'"(\w+)"', "".join(names)))
    assert {path.stem for path in FOLDER.glob("*.py")} - run == set()


def test_a_fleet_that_waits_as_long_as_it_is_told(tiny, tmp_path):
    """How fast answers are on this machine is nobody's business here."""
    options = "--devices", 40, "--per-round", 2, "--seconds", 8, "--warm-up", 1, "--rush", 20, "--p99", 1e9
    ran("large_fleet", "--bundle", tiny, *options, "--training", 0.1, 0.3, "--json", tmp_path / "found.json")
    (found,) = json.loads((tmp_path / "found.json").read_text())["found"]
    assert (found["lost"], found["failed_rounds"]) == (0, 0)
    assert found["answers"].keys() <= {"check-in 200", "check-in 503", "update 200", "update 409"}


def test_nothing_is_lost_where_one_of_several_servers_is_killed(tiny):
    for module in ("pgserver", "moto.server", "obstore"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    options = "--devices", 8, "--per-round", 4, "--rounds", 4, "--training", 0.2, 0.8, "--every", 1, "--kills", 1
    told = ran("replicas", "--bundle", tiny, *options)
    assert "bit for bit: True" in told
    (line,) = [line for line in told.splitlines() if "receipts lost" in line]
    assert line.split()[-2:] == ["0", "0"]

"""A simulation that was stopped at any moment ends as one that was not."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from server.errors import Refusal, SimulationError
from server.simulation.run.run import simulate
from tests.server.simulation.runs import bits, done, ignore, lines, small, write_data

CASES = {
    "numbers": ("spry", {"mode": "iteration"}),
    "what is usual": ("spry", {"aggregation": "trimmed"}),
    "late updates": ("spry", {"settings": {"schedule": "buffered", "buffer": 2}, "speeds": 10.0}),
    "what devices said": ("spry", {"aggregation": "agreeing"}),
    "the last change": ("fwdllm+", {}),
}


PATIENCE = 300
"""Seconds until something hangs; a busy machine is slow."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Not to be written to, as the runs below."""
    return write_data(tmp_path_factory.mktemp("data"), rows=120)


@pytest.fixture(scope="module")
def whole(model_folder, data, tmp_path_factory):
    """A run of three rounds that nothing stopped."""
    return done(small(model_folder, data, rounds=3), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def two_rounds(model_folder, data, tmp_path_factory):
    return done(small(model_folder, data, rounds=2), tmp_path_factory.mktemp("two") / "run")


@pytest.fixture
def begun(two_rounds, tmp_path):
    """A copy of a run of two rounds."""
    return shutil.copytree(two_rounds, tmp_path / "begun")


@pytest.fixture(scope="module")
def forks():
    """Processes that have the libraries loaded as they begin."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["export.rows", "tests.server.simulation.runs"])
    return context


def killed(context, plan, run):
    """At some moment after its next round has ended; False where it was done by then."""
    before = len(lines(run)) if (run / "rounds.jsonl").exists() else 0
    process = context.Process(target=done, args=(plan, run))
    process.start()
    until = time.monotonic() + PATIENCE
    while process.is_alive() and (not (run / "rounds.jsonl").exists() or len(lines(run)) == before):
        assert time.monotonic() < until
        time.sleep(0.001)
    process.join(random.uniform(0, 0.1))
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def test_a_run_killed_at_any_moment_ends_with_the_same_bits(model_folder, data, tmp_path, forks):
    assert killed(forks, small(model_folder, data, rounds=1000), tmp_path / "run")
    plan = small(model_folder, data, rounds=len(lines(tmp_path / "run")) + 2)
    while killed(forks, plan, tmp_path / "run"):
        pass
    assert bits(done(plan, tmp_path / "run")) == bits(done(plan, tmp_path / "whole"))


class Stopped(Exception):
    """Stands for the end of the process: what is kept of a round is on the disk when it is told."""


@pytest.mark.parametrize("case", CASES)
def test_what_a_run_goes_on_from_is_kept(case, model_folder, data, tmp_path):
    method, training = CASES[case]
    plan = small(model_folder, data, method, rounds=4, **training)

    def stop(line):
        if line["round"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        simulate(plan, tmp_path / "run", stop)
    assert bits(done(plan, tmp_path / "run")) == bits(done(plan, tmp_path / "whole"))


def test_a_line_without_its_state_is_a_round_to_repeat(model_folder, data, whole, begun):
    with (begun / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "loss": 9}\n{"round": 4, "lo')
    assert bits(done(small(model_folder, data, rounds=3), begun)) == bits(whole)


def test_more_rounds_go_on_and_the_summary_is_of_all(model_folder, data, whole, begun):
    assert bits(done(small(model_folder, data, rounds=3), begun)) == bits(whole)
    rows = [json.loads(line) for line in (begun / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((begun / "summary.json").read_text())
    assert summary["bytes_up"] == sum(row["bytes_up"] for row in rows)


def test_a_finished_run_tells_its_summary_and_computes_nothing(model_folder, data, begun):
    before = {path: path.stat().st_mtime_ns for path in begun.glob("*") if path.name != "config.json"}
    told = json.loads((begun / "summary.json").read_text())
    heard = []
    assert simulate(small(model_folder, data, rounds=2), begun, heard.append) == told
    assert [line["round"] for line in heard] == [1, 2]
    assert before == {path: path.stat().st_mtime_ns for path in before}


def refused(plan, out, why):
    with pytest.raises((SimulationError, Refusal), match=why):
        simulate(plan, out, ignore)


def test_other_settings_and_fewer_rounds_are_refused(model_folder, data, begun, tmp_path):
    kept = bits(begun)
    refused(small(model_folder, data, rounds=1), begun, "holds 2 rounds, more than --rounds 1")
    refused(small(model_folder, data, rounds=2, sigma=0.5), begun, r"differs in settings\.training\.sigma;")
    refused(small(model_folder, data, "fedavg", rounds=2), begun, "differs in method, settings")
    longer = shutil.copytree(data, tmp_path / data.name)
    with (longer / "train.jsonl").open("a") as file:
        file.write('{"text": "ice", "label": 0}\n')
    refused(small(model_folder, longer, rounds=2), begun, r"differs in data\.examples, data\.fingerprint")
    assert bits(begun) == kept


def test_what_was_refused_before_its_first_round_leaves_the_folder_free(model_folder, data, tmp_path):
    wrong = small(model_folder, data, rounds=1, pack=True)
    refused(wrong, tmp_path / "run", "training.pack puts texts of language models into one sequence")
    assert len(lines(done(small(model_folder, data, rounds=1), tmp_path / "run"))) == 1


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("rounds.jsonl", "", "lacks rounds that are in the checkpoint"),
        ("config.json", "{", "config.json cannot be read"),
        ("checkpoint/state.safetensors", "x", "state.safetensors cannot be read"),
    ],
)
def test_a_damaged_folder_is_refused(name, content, why, model_folder, data, begun):
    (begun / name).write_text(content)
    refused(small(model_folder, data, rounds=3), begun, why)


def test_a_folder_is_taken_only_when_it_is_free(model_folder, data, tmp_path):
    plan = small(model_folder, data, rounds=1)
    (tmp_path / "file").write_text("")
    refused(plan, tmp_path / "file", "is not a folder")
    refused(plan, data, "holds something else than a simulation")
    done(plan, tmp_path / "run")

    def again(_line):
        refused(plan, tmp_path / "twice", "a simulation is running in")

    simulate(plan, tmp_path / "twice", again)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if (
        os.geteuid()
        or shutil.which("mount") is None
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_and_the_folder_goes_on(model_folder, data, whole, small_disk):
    plan = small(model_folder, data, rounds=3)
    filler = small_disk / "filler"

    def fill(line):
        if line["round"] == 2:
            filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))

    with pytest.raises(OSError, match="No space left on device") as caught:
        simulate(plan, small_disk / "run", fill)
    assert caught.value.filename
    assert not list((small_disk / "run").rglob("*.partial"))
    filler.unlink()
    assert bits(done(plan, small_disk / "run")) == bits(whole)

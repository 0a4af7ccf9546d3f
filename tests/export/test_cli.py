"""`spry export` and what follows it, as processes: output, exit codes, and what is left behind."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from io import StringIO

import pytest
from rich.console import Console

from edge_client.bundle.folder import Bundle
from edge_client.commands import cli
from export.cli import verification_table
from tests import warm
from tests.conftest import LABELS

SMALL = ["--batch", "2", "--seq", "8", "--labels", ",".join(LABELS), "--workers", "1"]


def command(*args, python=sys.executable) -> list[str]:
    return [python, "-c", "from edge_client.commands.cli import main; main()", *map(str, args)]


def spry(*args, **env) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **env}
    )


@pytest.fixture
def told(capsys):
    """The same in this process; what libraries say as they are loaded is asked of the exports below."""

    def run(*args) -> subprocess.CompletedProcess[str]:
        with warnings.catch_warnings():
            code = cli.run([str(arg) for arg in args])
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    yield run
    logging.disable(logging.NOTSET)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def exported(model_folder, tmp_path_factory):
    """Two exports of the same, side by side: neither sees the other's cache or hash seed. One begins warm."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    unmeasured = {name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_CONFIG"}
    ways = [
        (sys.executable, os.environ | {"PYTHONHASHSEED": "1"}, ["--no-cache"]),
        (warm.python(), unmeasured, ["--cache-dir", "kept"]),
    ]
    running = [
        subprocess.Popen(
            command("export", model_folder, "--out", "bundle", "--json", "--no-measure", *SMALL, *more, python=python),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder, (python, environment, more) in zip(folders, ways, strict=True)
    ]
    return folders, [(process.communicate(timeout=300), process.returncode) for process in running]


def test_the_result_as_json(exported):
    folders, results = exported
    for folder, ((out, _), code) in zip(folders, results, strict=True):
        assert code == 0
        found = json.loads(out)
        manifest = Bundle.open(folder / "bundle").manifest
        assert found["bundle"] == "bundle"
        assert found["units"] == 2, "query and value of the last of two blocks"
        assert found["bytes"] == sum(file.bytes for file in manifest.files)
        assert found["runtimes"]["onnx"]["programs"] == len(manifest.runtimes["onnx"].programs)
        assert all(check["passed"] for check in found["verification"])
        assert 200e6 < found["peak_bytes"] < 3e9, "torch and a tiny model"
        assert found["worker_peak_bytes"] >= 0
        assert manifest.model.labels == LABELS


def test_progress_goes_to_standard_error_a_line_per_stage(exported):
    for (_, err), _ in exported[1]:
        stages = re.findall(r"^(.+): done in [\d.]+ s$", err, re.MULTILINE)
        assert stages == ["load", "adapt", "capture and differentiate", "lower", "verify"]
        told = [line for line in err.strip().splitlines() if " so far" not in line]  # of a busy machine
        assert len(told) == len(stages), "nothing of the libraries' own"


def test_processes_write_the_same_bytes(exported):
    (first, second), _ = exported
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert len(files) > 5
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


def test_nothing_but_the_bundle_is_left(exported):
    (first, second), _ = exported
    assert names(first) == ["bundle"]
    assert names(second) == ["bundle", "kept"]
    assert not [name for name in names(second / "kept") if name.startswith(".")]


def test_the_table(exported):
    """The command's other output, for a bundle that is there."""
    text = StringIO()
    Console(file=text, width=120).print(
        verification_table(Bundle.open(exported[0][0] / "bundle").manifest.verification)
    )
    assert "loss, relative error" in text.getvalue()
    assert "≤ 0.0001" in text.getvalue()


@pytest.mark.parametrize("args", [("export",), ("inspect",), ("bench", "step")])
def test_help_shows_an_example(args):
    done = spry(*args, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example: spry {' '.join(args)} " in " ".join(done.stdout.split())
    options = set(re.findall(r"--[a-z-]+", done.stdout))
    assert "--json" in options


def test_inspect_reads_what_export_wrote(exported):
    folder = exported[0][0]
    done = spry("inspect", folder / "bundle", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [unit["segments"] for unit in found["units"]] == [["block.1"]] * 2
    assert [offer["cut"]["name"] for offer in found["cuts"]["onnx"]] == ["block.1"]


# --- what cannot work ------------------------------------------------------------------------------------------------

WRONG = [
    (["--low-memory", "--random-weights"], "--random-weights has none: leave one of them out"),
    (["--task", "seq"], "unknown task 'seq'; expected one of seq-cls, qa, "),
    (["--rank", "-1"], "Invalid value for '--rank'"),
    (["--alpha", "nan"], "alpha must be a finite number, got nan"),
    (["--rank", "two"], "Invalid value for '--rank'"),
    (["--seq", "8;9"], "--seq takes whole numbers between commas, got '8;9'"),
    (["--nonsense"], "No such option: --nonsense"),
    (["--target", "onnx,onnx"], "each target may be named once"),
]


@pytest.mark.parametrize(("args", "message"), WRONG)
def test_wrong_options_are_one_line(model_folder, tmp_path, args, message, told):
    done = told("export", model_folder, "--out", tmp_path / "out", *args)
    assert one_line(done) == message or message in done.stderr
    assert names(tmp_path) == []


def one_line(done) -> str:
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def test_what_the_model_does_not_allow_is_one_line_after_the_stages(model_folder, tmp_path, told):
    done = told("export", model_folder, "--out", tmp_path / "out", *SMALL, "--target-modules", "nonsense")
    assert done.returncode == 2
    *stages, last = done.stderr.splitlines()
    assert last.startswith("error: target module nonsense matches no linear layer of the model")
    assert [line.partition(":")[0] for line in stages] == ["load"]
    assert names(tmp_path) == []


def test_a_folder_without_a_model(tmp_path, told):
    (tmp_path / "empty").mkdir()
    done = told("export", tmp_path / "empty", "--out", tmp_path / "out")
    assert "holds no model: expected config.json" in one_line(done)
    assert names(tmp_path) == ["empty"]


def test_a_bundle_that_is_none(tmp_path, told):
    for args in (("inspect",), ("bench", "step")):
        assert "manifest.json" in one_line(told(*args, tmp_path))


# --- interrupted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(model_folder, tmp_path, how):
    """Ctrl-C as a terminal sends it, to the command and to its workers; and as a system ends a process."""
    python = sys.executable if how == signal.SIGINT else warm.python()  # which passes signals on to the command alone
    many = ["--verify", "full", "--workers", "2", "--cache-dir", tmp_path / "cache"]
    running = subprocess.Popen(
        command("export", model_folder, "--out", tmp_path / "out", *SMALL, *many, python=python),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    seen = ""
    while "lower: done" not in seen:
        line = running.stderr.readline()
        assert line, seen
        seen += line
    deadline = time.monotonic() + 300
    while not any(name.startswith(".out.partial") for name in names(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (os.killpg if how == signal.SIGINT else os.kill)(running.pid, how)
    try:
        out, err = running.communicate(timeout=300)
    finally:
        running.kill()
    assert running.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1].startswith("Stopped: no bundle was written to ")
    assert "Traceback" not in err
    assert names(tmp_path) == ["cache"]
    assert not [name for name in names(tmp_path / "cache") if name.startswith(".")]

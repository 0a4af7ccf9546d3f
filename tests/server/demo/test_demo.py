"""`spry demo` as its user runs it, with a small model: real processes from the export to the adapter."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import httpx
import pytest
from safetensors.numpy import load_file

from edge_client.bundle.folder import Bundle
from edge_client.errors import SpryError
from server.demo.fleet import runtimes_for
from server.demo.folder import DemoFolder
from server.demo.plan import plan_for

SPRY = [sys.executable, "-c", "from edge_client.commands.cli import main; main()"]
PATIENCE = 600
"""Seconds until something hangs; a busy machine is slow."""


class Demo:
    """`spry demo` in a folder of its own."""

    def __init__(self, out: Path, model: Path, *options: str, clients: int = 1) -> None:
        self.out = out
        self.log = out.with_suffix(".log")
        command = [*SPRY, "demo", "--out", str(out), "--model", str(model), "--clients", str(clients), *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def finished(self) -> tuple[int, str]:
        printed, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, printed

    def until(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def others(self) -> list[int]:
        """Processes that still work in its folder, but for the demo itself."""
        found = []
        for status in Path("/proc").glob("[0-9]*"):
            try:
                told = (status / "cmdline").read_text()
            except OSError:
                continue
            if str(self.out) in told and int(status.name) != self.process.pid and "Z (" not in told:
                found.append(int(status.name))
        return found

    def leaves_nothing(self) -> bool:
        end = time.monotonic() + PATIENCE
        while self.others() and time.monotonic() < end:
            time.sleep(0.1)
        return not self.others()


@pytest.fixture(scope="module")
def learned(model_folder, tmp_path_factory) -> tuple[Demo, dict]:
    """One that ran to its end."""
    demo = Demo(tmp_path_factory.mktemp("demo") / "spry demo", model_folder, "--rounds", "2", "--json", clients=3)
    code, printed = demo.finished()
    assert code == 0, demo.log.read_text()
    return demo, json.loads(printed)


def test_the_result(learned):
    demo, result = learned
    accuracy = result["accuracy"]
    assert {"before", "after", "alone", "own"} <= set(accuracy)
    assert set(accuracy["own"]) == {"before", "together", "personal", "alone"}
    evaluated = re.search(r"round  2 of 2 .* accuracy (\S+) ", demo.log.read_text())  # by the server, not by the demo
    assert f"{accuracy['after']:.2f}" == evaluated[1]
    for name, value in accuracy["own"].items():
        assert value == pytest.approx(fmean(device["own"][name] for device in result["devices"]))
    assert (result["rounds"], len(result["devices"])) == (2, 3)
    assert {device["runtime"] for device in result["devices"]} == {"onnx", "executorch", "torchscript"}
    for device in result["devices"]:
        assert device["peak_bytes"] > 20e6
        assert device["seconds_per_step"] > 0
        assert device["up"] > 0
        assert device["down"] > 0
    assert demo.leaves_nothing()


def test_the_adapter_is_what_was_learned(learned):
    demo, result = learned
    trained = load_file(Path(result["adapter"]) / "adapter_model.safetensors")
    bundle = Bundle.open(demo.out / "bundle")
    initial = bundle.initial_adapter()
    assert initial.keys() <= trained.keys()
    assert any((trained[name] != value).any() for name, value in initial.items())


def test_the_next_run_takes_the_bundle_and_nothing_else(learned, model_folder):
    before, _ = learned
    kept = (before.out / "bundle" / "manifest.json").stat().st_mtime_ns
    demo = Demo(before.out, model_folder, "--rounds", "1", "--keep-serving")
    demo.until("Serving until you press Ctrl-C: ")
    address = demo.log.read_text().split("Serving until you press Ctrl-C: ")[1].split()[0]
    url, token = address.split("/#token=")
    jobs = httpx.get(f"{url}/v1/jobs", headers={"Authorization": f"Bearer {token}"}).json()
    assert [(job["name"], job["state"], job["done"]) for job in jobs] == [("demo", "ended", 1)]
    demo.process.send_signal(signal.SIGINT)
    code, printed = demo.finished()
    assert code == 130
    assert "together (global)" in printed
    assert "What to try next" in printed
    assert demo.leaves_nothing()
    assert (demo.out / "bundle" / "manifest.json").stat().st_mtime_ns == kept


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_its_end_is_everybodys(learned, model_folder, how):
    before, _ = learned
    demo = Demo(before.out, model_folder, "--rounds", "50", clients=2)
    demo.until("round  1 of 50")
    assert len(demo.others()) >= 3  # a server and two devices
    demo.process.send_signal(how)
    assert demo.process.wait(PATIENCE) == (-how if how == signal.SIGKILL else 130)
    demo.process.stdout.close()
    assert ("Stopped, with its server and devices" in demo.log.read_text()) == (how != signal.SIGKILL)
    assert demo.leaves_nothing()


def test_an_interrupted_export_leaves_nothing(model_folder, tmp_path):
    demo = Demo(tmp_path / "demo", model_folder)
    demo.until("Exporting")
    while not demo.others():
        time.sleep(0.01)
    time.sleep(2)
    os.kill(demo.process.pid, signal.SIGINT)
    assert demo.finished()[0] == 130
    assert demo.log.read_text().endswith("the same command starts again.\n")
    assert demo.leaves_nothing()
    assert {path.name for path in (tmp_path / "demo").iterdir()} <= {".spry-demo", "logs"}


def test_a_device_that_fails_is_named(learned, model_folder):
    before, _ = learned
    demo = Demo(before.out, model_folder, "--rounds", "50")
    demo.until("round  1 of 50")
    device = next(pid for pid in demo.others() if "--name" in name_of(pid))
    os.kill(device, signal.SIGKILL)
    code, _ = demo.finished()
    assert code == 2
    assert "ended with code -9" in demo.log.read_text()
    assert demo.leaves_nothing()


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


# --- what it refuses ---


def test_it_clears_no_folder_but_its_own(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SpryError, match="holds something else"), DemoFolder(tmp_path).taken():
        pass
    (tmp_path / "file").touch()
    with pytest.raises(SpryError, match="is a file"), DemoFolder(tmp_path / "file").taken():
        pass
    assert (tmp_path / "thesis.tex").exists()


def test_a_folder_that_cannot_be_made_is_one_line():
    with pytest.raises(SpryError, match="cannot be made"), DemoFolder(Path("/proc/demo")).taken():
        pass


def test_one_demo_at_a_time_has_a_folder(tmp_path):
    with (
        DemoFolder(tmp_path / "demo").taken(),
        pytest.raises(SpryError, match="another demo runs"),
        DemoFolder(tmp_path / "demo").taken(),
    ):
        pass


def test_a_damaged_bundle_is_not_taken(learned, tmp_path):
    import shutil

    before, _ = learned
    shutil.copytree(before.out, tmp_path / "demo")
    folder = DemoFolder(tmp_path / "demo")
    recipe = (tmp_path / "demo" / "bundle.recipe").read_text().split(" ")
    assert folder.recipe.made(recipe)
    assert not folder.recipe.made([*recipe, "--rank", "2"])
    file = next(path for path in folder.bundle.rglob("*.onnx"))
    file.write_bytes(file.read_bytes()[:-1])
    assert not folder.recipe.made(recipe)


def test_unknown_modes_are_refused(tmp_path):
    with pytest.raises(SpryError, match="--mode must be one of epoch, iteration"):
        plan_for(2, None, "batch", tmp_path, "model", 0)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(1, ["a"]), (2, ["a", "b"]), (3, ["a", "b", "c"]), (6, ["a", "a", "a", "a", "b", "c"])],
)
def test_every_runtime_has_a_device(clients, expected):
    assert runtimes_for(clients, ["a", "b", "c"]) == expected
    assert runtimes_for(clients, ["a"]) == ["a"] * clients

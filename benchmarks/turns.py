"""What a step along many directions costs a device: each moves all units, or each one of them.

    python benchmarks/turns.py --bundle bundle/ [--runtime onnx] [--directions 96] [--json]

Prints forward passes: the time of a step from kept hidden states over that of a forward pass, both of one thread in the
same run, with all units of the bundle on one client. Beside them the exact gradient by reverse mode.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from edge_client.bundle.chain import cut_for
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch
from edge_client.gradient.drawing import step_directions
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.passes import Passes
from edge_client.step.turns import directions_at_once
from edge_client.wire.protocol import ServerOptimizers, Task, Training

SEED = 7


@dataclass(frozen=True)
class Figures:
    runtime: str
    batch: int
    length: int
    units: int
    directions: int
    at_once: int
    """Directions of a program."""
    forward_ms: float
    joint: float
    """Forward passes, as the next two."""
    apart: float
    exact: float


def task_of(manifest: Manifest, runtime: str, directions: int) -> Task:
    batch, length = manifest.shapes[0]
    units = list(range(len(manifest.units)))
    return Task(
        id="task", job="job", job_name="turns", round=1, seed=SEED, units=units, cut=cut_for(manifest, units),
        bundle="", runtime=runtime, version=0, iteration=0, seconds=60.0, optimizers=ServerOptimizers(), batch=batch,
        training=Training(batch=batch, length=length, directions=directions, kind="orthogonal"),
    )  # fmt: skip


def random_batch(manifest: Manifest, vocabulary: int, batch: int, length: int) -> Batch:
    """Texts of full length; what they say costs nothing."""
    random = np.random.default_rng(SEED)
    tokens = {name: np.ones((batch, length), np.int64) for name in manifest.inputs}
    tokens["input_ids"] = random.integers(1, vocabulary, (batch, length))
    if "token_type_ids" in tokens:
        tokens["token_type_ids"] *= 0
    return Batch(0, tokens, np.zeros(batch, np.int64), np.ones(batch, np.float32))


def medians(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each, taken in turn, so that a change of the machine's speed meets them all."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(-1, repeats):  # the first warms up
        for name, work in works.items():
            started = time.process_time()
            work()
            if number >= 0:
                taken[name].append(time.process_time() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def measure(folder: Path, runtime: str, directions: int, repeats: int) -> Figures:
    bundle = Bundle.open(folder)
    manifest, weights = bundle.manifest, bundle.initial_adapter()
    joint = task_of(manifest, runtime, directions)
    apart = replace(joint, training=replace(joint.training, units_apart=True))
    batch = random_batch(manifest, bundle.tokenizer().get_vocab_size(), *manifest.shapes[0])
    with open_runtime(runtime, bundle.folder, threads=1) as programs:

        def step(task: Task) -> Callable[[], object]:
            passes = Passes(manifest, programs, task, cache_bytes=1 << 30)
            drawn = step_directions(manifest, task.units, task.seed, task.training, 0)
            return lambda: passes.along(batch, weights, drawn)

        passes = Passes(manifest, programs, joint)
        works = {
            "forward": lambda: passes.logits(batch, weights),
            "joint": step(joint),
            "apart": step(apart),
            "exact": lambda: passes.exact(batch, weights),
        }
        found = medians(works, repeats)
    return Figures(
        runtime, joint.batch, joint.training.length, len(manifest.units), directions,
        directions_at_once(manifest, directions), 1e3 * found["forward"],
        *(found[name] / found["forward"] for name in ("joint", "apart", "exact")),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--runtime", default="onnx")
    parser.add_argument(
        "--directions", type=int, default=96, help="K, a multiple of what a program of the bundle takes"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measure(options.bundle, options.runtime, options.directions, options.repeats)
    if options.json:
        print(json.dumps(asdict(found)))
        return
    shape = f"{found.batch} x {found.length} tokens, {found.units} units"
    print(f"{found.runtime}, {shape}, {found.directions} directions, {found.at_once} at once")
    print(f"{'forward pass':<32}{found.forward_ms:>8.1f} ms")
    told = {
        "joint": "each direction moves all units",
        "apart": "each direction moves one unit",
        "exact": "reverse mode",
    }
    for name, text in told.items():
        print(f"{text:<32}{getattr(found, name):>8.1f} forward passes")


if __name__ == "__main__":
    main()

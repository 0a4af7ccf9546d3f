"""Measure the time and memory of a round's aggregation: 100 updates of a RoBERTa-large adapter.

    python benchmarks/aggregation.py

24 blocks of width 1024, LoRA of rank 1 on query and value (48 units), and a classification head of 1.05 million weights
that every client sends. Updates are read from disk as the server reads them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from fleet import machine

from edge_client.arrays import Weights
from edge_client.training.optimizers import server_step
from edge_client.wire.protocol import ServerOptimizers
from server.policy.assignment import cyclic
from server.storage.files.blobs import Blobs
from server.strategy.mean import Mean

UNITS, WIDTH, LABELS = 48, 1024, 4


def model() -> tuple[Weights, frozenset[str]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for unit in range(UNITS):
        shapes |= {f"unit.{unit}.lora_A": (1, WIDTH), f"unit.{unit}.lora_B": (WIDTH, 1)}
    head = {
        "dense.weight": (WIDTH, WIDTH),
        "dense.bias": (WIDTH,),
        "out.weight": (LABELS, WIDTH),
        "out.bias": (LABELS,),
    }
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in {**shapes, **head}.items()}
    return weights, frozenset(head)


def aggregate(blobs: Blobs, names: list[str], weights: Weights, head: frozenset[str]) -> tuple[float, float]:
    """Seconds, and MB above what was resident before."""
    process = psutil.Process()
    before = process.memory_info().rss
    started = time.perf_counter()
    mean, highest = Mean(weights), before
    for name in names:
        mean.add(blobs.tensors(name), 8)
        highest = max(highest, process.memory_info().rss)
    moved = dict(weights)
    server_step(moved, mean.changes(), {}, ServerOptimizers(), head)
    return time.perf_counter() - started, (highest - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    count: int = parser.parse_args().updates
    weights, head = model()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        blobs = Blobs(Path(folder))
        names: list[str] = []
        for units in cyclic(UNITS, count):
            own = {f"unit.{unit}.lora_{part}" for unit in units for part in "AB"} | head
            update = {name: weights[name] + rng.normal(0, 1e-3, weights[name].shape).astype(np.float32) for name in own}
            names.append(blobs.put_tensors(update))
        size = sum(blobs.path(name).stat().st_size for name in names) / 1e6
        aggregate(blobs, names[:2], weights, head)
        print(machine())
        print(f"{'updates':>8}{'seconds':>10}{'MB above':>10}")
        for part in (count // 10, count):
            seconds, memory = aggregate(blobs, names[:part], weights, head)
            print(f"{part:>8}{seconds:>10.3f}{memory:>10.1f}")
        print(f"{size:.0f} MB of updates")


if __name__ == "__main__":
    main()
